package external

import (
	"slices"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

func FuzzDocumentIsReadOrRefused(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"slipway.dev/notice/v1","notices":[{"id":"a","type":"Preempt","notBefore":1796151601,"acknowledge":"true"}]}`))
	f.Add([]byte(`{"notices":[{"type":"Freeze","impactSeconds":1e300,"noticeSeconds":-1},{"type":"freeze"},{"ID":"x"},null,[]]}`))
	f.Add([]byte(`{"notices":null}`))
	f.Add([]byte(`<html>`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := parseDocument("plugin", "vm-1", raw, time.Unix(0, 0))
		if err != nil {
			return
		}
		ids := map[string]bool{}
		for _, n := range s.Notices {
			if n.ID == "" || ids[n.ID] || n.NoticePeriod < 0 || !slices.Contains(notice.Interruptions(), n.Type) || s.HasEnded(n.ID) {
				t.Errorf("%+v", n)
			}
			ids[n.ID] = true
		}
		if len(s.Notices) > maxNotices || len(s.Unreadable)+len(s.Warnings) > 200 {
			t.Errorf("%d notices, %d and %d problems", len(s.Notices), len(s.Unreadable), len(s.Warnings))
		}
	})
}
