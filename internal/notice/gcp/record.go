package gcp

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

const (
	// lostRecordDelay is how long after its window a planned maintenance counts as over, if the metadata server has no
	// information about it and the VM still runs.
	lostRecordDelay = time.Hour
	// minLostTime is how long the server must have had no information. It responds with 503 during a maintenance of its own.
	minLostTime = 10 * time.Minute
)

// maintenanceRecord decides when a planned maintenance is over although the metadata server never said so. The server may
// drop the record of a maintenance and then respond with 404 or 503, as for a VM without one. ResumeNotices and reads may be
// concurrent, so its methods are safe for concurrent use.
type maintenanceRecord struct {
	planned *atomic.Pointer[plannedMaintenance] // of the last good read

	mu        sync.Mutex
	read      bool      // planned was read by this process
	resumed   bool      // an earlier agent process acted on a maintenance
	windowEnd time.Time // of the resumed maintenance; zero if it is unknown
	lostSince time.Time // zero while the server has information
}

// resume passes the notices that an earlier agent process was acting on.
func (r *maintenanceRecord) resume(notices []notice.Notice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range notices {
		if n.ID == plannedID {
			r.resumed, r.windowEnd = true, cmp.Or(n.WindowEnd, n.NotBefore)
		}
	}
}

// observeRead records that the server had information.
func (r *maintenanceRecord) observeRead() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read, r.lostSince = true, time.Time{}
}

// observeLost records that the server has no information, and reports whether the maintenance is over. It is over once
// lostRecordDelay has passed since the end of its window, or since its start if the end is unknown. If both are unknown, the
// first loss counts. now is the time on the server's clock.
func (r *maintenanceRecord) observeLost(now time.Time) (over bool, window time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lostSince.IsZero() {
		r.lostSince = now
	}
	m := r.planned.Load()
	switch {
	case m != nil:
		window = m.windowEnd()
	case r.resumed && !r.read:
		window = r.windowEnd
	default:
		return false, time.Time{}
	}
	if window.IsZero() {
		window = r.lostSince
	}
	return now.Sub(window) >= lostRecordDelay && now.Sub(r.lostSince) >= minLostTime, window
}
