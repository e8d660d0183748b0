package request

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/slipway-dev/slipway/internal/notice"
)

func TestNoSnapshotBeforeARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var heard []notice.Snapshot
		s := NewSource(notice.Preempt)
		go s.Run(ctx, func(n notice.Snapshot) { heard = append(heard, n) })
		synctest.Wait()
		if len(heard) > 0 {
			t.Fatalf("snapshot %+v before a request would end the request of an earlier process", heard)
		}
		s.RequestDrain()
		synctest.Wait()
		s.CancelDrain()
		synctest.Wait()
		if len(heard) != 2 || heard[0].HasEnded(NoticeID) || !heard[1].HasEnded(NoticeID) {
			t.Errorf("snapshots %+v", heard)
		}
	})
}
