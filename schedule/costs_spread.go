package schedule

// SpreadOver turns costs that are known for one stage a device into those of a plan of the same devices with several stages
// each. A stage is cut into as many equal parts, in the order of the model, which the plan then places; so times are
// those of layers, and devices are taken to be alike. Links stay between their devices: neighbours have theirs, others
// one like the slowest. What crosses a cut inside of a former stage is as large as what leaves that stage.
//
// The costs must be valid for len(plan) stages, and Check must have passed the plan.
func (c Costs) SpreadOver(plan Plan) Costs {
	placement := plan.Placement()
	parts := len(placement) / len(plan)
	if parts == 1 {
		return c
	}
	out := c
	out.Link, out.Bandwidth, out.MessageBytes = nil, nil, nil
	for _, l := range out.lists() {
		switch {
		case l.per != "stage":
		case l.numbers != nil:
			*l.numbers = cut(*l.numbers, parts)
		default:
			*l.bytes = cut(*l.bytes, parts)
		}
	}
	if len(plan) == 1 {
		return out // nothing crosses a link
	}
	for b := range len(placement) - 1 {
		latency, bandwidth := c.between(placement[b], placement[b+1])
		out.Link, out.Bandwidth = append(out.Link, latency), append(out.Bandwidth, bandwidth)
		if c.MessageBytes != nil {
			out.MessageBytes = append(out.MessageBytes, c.MessageBytes[min(b/parts, len(c.MessageBytes)-1)])
		}
	}
	return out
}

// cut divides each value into equal parts; nil stays nil.
func cut[T int64 | float64](values []T, parts int) []T {
	var out []T
	for _, v := range values {
		out = append(out, repeat(v/T(parts), parts)...)
	}
	return out
}

// between is the latency and bandwidth from one device to another, where boundary d lies between the devices d and d+1.
func (c Costs) between(from, to int) (latency, bandwidth float64) {
	switch to - from {
	case 0:
		return 0, 0
	case 1:
		return at(c.Link, from), at(c.Bandwidth, from)
	case -1:
		return at(c.Link, to), at(c.Bandwidth, to)
	}
	for b := range c.Link {
		latency = max(latency, c.Link[b])
	}
	for _, v := range c.Bandwidth {
		if v > 0 && (bandwidth == 0 || v < bandwidth) {
			bandwidth = v
		}
	}
	return latency, bandwidth
}
