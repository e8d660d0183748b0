package observe

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestLoggerWritesItsFormatFromItsLevelOn(t *testing.T) {
	levels := []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}
	for i, name := range []string{"debug", "INFO", "Warn", "error"} {
		for _, format := range []string{"json", "text", "JSON"} {
			var b bytes.Buffer
			log, err := NewLogger(&b, format, name)
			must.NoError(t, err)
			for _, l := range levels {
				log.Log(t.Context(), l, "evicted", "pod", "shop/web-0")
			}
			lines := strings.Split(strings.TrimSpace(b.String()), "\n")
			if len(lines) != len(levels)-i {
				t.Errorf("%s %s: %d lines, want %d", format, name, len(lines), len(levels)-i)
			}
			isJSON := json.Valid([]byte(lines[0]))
			if isJSON != (format != "text") || !strings.Contains(lines[0], "shop/web-0") {
				t.Errorf("%s: %s", format, lines[0])
			}
		}
	}
}

func TestBadLevelOrFormatNamesTheAllowedOnes(t *testing.T) {
	for _, tt := range []struct{ format, level, want string }{
		{"json", "loud", `log level "loud": want debug, info, warn or error`},
		{"json", "", `log level "": want debug, info, warn or error`},
		{"json", "info+2", `log level "info+2": want debug, info, warn or error`},
		{"yaml", "info", `log format "yaml": want json or text`},
	} {
		if _, err := NewLogger(&bytes.Buffer{}, tt.format, tt.level); err == nil || err.Error() != tt.want {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
}
