package raftlog

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// raftLogger passes Raft's log on to a zap logger.
func raftLogger(logger *zap.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclog.Debug, Output: io.Discard})
	l.RegisterSink(zapSink{logger.Named("raft")})
	return l
}

// zapSink is where hclog's lines end.
type zapSink struct{ logger *zap.Logger }

func (s zapSink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	at := zapLevel(level)
	switch {
	case at == zapcore.WarnLevel && slices.Contains(usual, msg), at == zapcore.ErrorLevel && compacted(msg, args):
		at = zapcore.DebugLevel
	case at == zapcore.ErrorLevel && slices.Contains(ofPeers, msg):
		at = zapcore.WarnLevel
	}
	entry := s.logger.Check(at, msg)
	if entry == nil {
		return
	}
	fields := make([]zap.Field, 0, (len(args)+1)/2)
	for i := 0; i+1 < len(args); i += 2 {
		value := args[i+1]
		if f, ok := value.(hclog.Format); ok && len(f) > 0 {
			value = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		}
		fields = append(fields, zap.Any(fmt.Sprint(args[i]), value))
	}
	if len(args)%2 == 1 {
		fields = append(fields, zap.Any("extra", args[len(args)-1]))
	}
	entry.Write(fields...)
}

// usual are warnings of the library at the start of a healthy node: it hears no leader because it is to become it, and asks for votes
// again when its own is slow to reach the disk.
var usual = []string{"heartbeat timeout reached, starting election", "no known peers, aborting election", "Election timeout reached, restarting election"}

// ofPeers are errors of the library that say that another node is away, comes back or leads: nothing of this node is wrong. Who is away for long, the members say.
var ofPeers = []string{
	"failed to accept connection", "failed to decode incoming command", "failed to flush response", "failed to make requestVote RPC", "target does not support pre-vote RPC, treating as granted",
	"failed to start pipeline replication to", "failed to appendEntries to", "failed to pipeline appendEntries", "failed to heartbeat to", "failed to send snapshot to", "failed to install snapshot",
	"failed to copy snapshot", "failed to receive whole snapshot", "peer has newer term, stopping replication",
}

// compacted reports whether a line is of an entry that the log has no more, since a snapshot has taken its place: the other node is sent that.
func compacted(msg string, args []any) bool {
	return msg == "failed to get log" && slices.ContainsFunc(args, func(a any) bool {
		err, is := a.(error)
		return is && errors.Is(err, raft.ErrLogNotFound)
	})
}

// zapLevel translates a level. Raft's Info is about elections, of interest when something is wrong: one level down.
func zapLevel(level hclog.Level) zapcore.Level {
	if at, told := map[hclog.Level]zapcore.Level{hclog.Error: zapcore.ErrorLevel, hclog.Warn: zapcore.WarnLevel}[level]; told {
		return at
	}
	return zapcore.DebugLevel
}
