package plugin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"

	"golang.org/x/time/rate"
)

// Limits for a plugin's output in Slipway's log.
const (
	maxLine        = 16 << 10 // bytes; the rest of a line is dropped
	linesPerSecond = 50
	linesAtOnce    = 500
	keptLines      = 5 // for the error of a failed start
)

// lineLog writes a plugin's output to Slipway's log. It is safe for concurrent use.
type lineLog struct {
	log   *slog.Logger
	limit *rate.Limiter

	mu      sync.Mutex
	skipped int
	last    []string
}

func newLineLog(log *slog.Logger) *lineLog {
	return &lineLog{log: log, limit: rate.NewLimiter(linesPerSecond, linesAtOnce)}
}

// logLines logs all lines of a reader.
func (l *lineLog) logLines(from io.Reader) {
	lines := bufio.NewReaderSize(from, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			l.logLine(string(bytes.TrimSpace(line)))
		}
		for errors.Is(err, bufio.ErrBufferFull) { // skip the rest of a long line
			_, err = lines.ReadSlice('\n')
		}
		if err != nil {
			return
		}
	}
}

// Write implements io.Writer for whole lines.
func (l *lineLog) Write(p []byte) (int, error) {
	l.logLines(bytes.NewReader(p))
	return len(p), nil
}

func (l *lineLog) logLine(text string) {
	skipped, ok := l.recordAndRateLimit(text)
	if !ok {
		return
	}
	if skipped > 0 {
		l.log.Warn("plugin log limit exceeded: lines were dropped", "lines", skipped)
	}
	var record map[string]any
	if !strings.HasPrefix(text, "{") || json.Unmarshal([]byte(text), &record) != nil {
		l.log.Info(text)
		return
	}
	var level slog.Level
	name, _ := record[slog.LevelKey].(string)
	message, _ := record[slog.MessageKey].(string)
	if level.UnmarshalText([]byte(name)) != nil || message == "" {
		l.log.Info(text)
		return
	}
	delete(record, slog.TimeKey)
	delete(record, slog.LevelKey)
	delete(record, slog.MessageKey)
	var attributes []any
	if len(record) > 0 {
		attributes = append(attributes, "said", record)
	}
	l.log.Log(context.Background(), level, message, attributes...)
}

// recordAndRateLimit records a line and reports whether to log it, and how many lines before it were dropped.
func (l *lineLog) recordAndRateLimit(text string) (skipped int, allowed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last = append(l.last, text); len(l.last) > keptLines {
		l.last = l.last[1:]
	}
	if !l.limit.Allow() {
		l.skipped++
		return 0, false
	}
	skipped, l.skipped = l.skipped, 0
	return skipped, true
}

// lastOutput returns the last lines of output, to append to an error.
func (l *lineLog) lastOutput() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.last) == 0 {
		return ""
	}
	return "\nits last output:\n  " + strings.Join(l.last, "\n  ")
}
