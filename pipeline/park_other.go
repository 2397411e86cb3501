//go:build !linux

package pipeline

func newParker() parker { return newChannelParker() }
