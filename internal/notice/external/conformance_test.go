package external

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/noticetest"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func serveDocument(w http.ResponseWriter, _ *http.Request, s noticetest.Situation) {
	notices := []map[string]any{}
	for _, a := range s.Active() {
		notices = append(notices, map[string]any{
			"id": "id-of-" + strings.ToLower(a.Name), "type": a.Type, "status": "Scheduled", "notBefore": a.NotBefore.UTC().Format(time.RFC3339),
			"noticeSeconds": 120, "impactSeconds": 30, "liveMigration": false, "userInitiated": false, "acknowledge": true, "description": "test",
		})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": APIVersion, "notices": notices}) // to a recorder
}

var leads = poll.Leads{Retirement: time.Hour, Maintenance: 15 * time.Minute}

func adapter() noticetest.Adapter {
	return noticetest.Adapter{
		New: func(t testing.TB, transport http.RoundTripper) noticetest.Source {
			source, err := NewSource(Options{
				Name: "plugin", Location: "http://127.0.0.1:8080/notices", Resource: "vm-1", Leads: leads, Wrap: func(http.RoundTripper) http.RoundTripper { return transport },
			})
			must.NoError(t, err)
			return source
		},
		Serve: serveDocument,
		Announcements: []noticetest.Announcement{
			{Name: "Freeze", Type: notice.Freeze, Timed: true},
			{Name: "Preempt", Type: notice.Preempt, Timed: true},
			{Name: "Reboot", Type: notice.Reboot, Timed: true},
			{Name: "Redeploy", Type: notice.Redeploy, Timed: true},
			{Name: "Terminate", Type: notice.Terminate, Timed: true},
		},
		Several:   true,
		Essential: []string{"notices", "notices[0]", "notices[0].type"},
	}
}

func TestURLPassesTheConformanceSuite(t *testing.T) { noticetest.Run(t, adapter()) }

// scriptedProgram plays a program. Its output is the body of the suite's response.
type scriptedProgram struct{ transport http.RoundTripper }

func (p scriptedProgram) acknowledge(context.Context, string) error { return nil }

func (p scriptedProgram) read(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://program/", nil)
	if err != nil {
		return nil, err
	}
	response, err := p.transport.RoundTrip(request)
	if err != nil {
		return nil, &poll.Error{Class: poll.Timeout, Err: err}
	}
	if response.StatusCode != http.StatusOK {
		return nil, &poll.Error{Class: poll.Unreachable, Err: errors.New("exit status 1")}
	}
	output, err := io.ReadAll(io.LimitReader(response.Body, MaxDocumentBytes+1))
	if err == nil && len(output) > MaxDocumentBytes {
		err = errors.New("too large")
	}
	return output, err
}

func TestProgramPassesTheConformanceSuite(t *testing.T) {
	a := adapter()
	a.NoClock = true
	a.New = func(t testing.TB, transport http.RoundTripper) noticetest.Source {
		source, err := NewSource(Options{Name: "plugin", Location: "exec:/opt/notices", Resource: "vm-1", Leads: leads})
		must.NoError(t, err)
		source.backend = scriptedProgram{transport}
		return source
	}
	noticetest.Run(t, a)
}
