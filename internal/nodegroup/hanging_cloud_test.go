package nodegroup

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/cloudtest"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

// TestHangingCloudLeavesWorkersForOthers has as many groups of the hanging cloud as there are workers.
func TestHangingCloudLeavesWorkersForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFixture(t)
		c := s.newController()
		c.options.Clouds = map[string]cloud.Provider{"hung": cloudtest.HangingProvider{}, "azure": &s.cloud}
		c.cloudSlots = cloud.NewWorkerLimiter(maxConcurrentGroups, c.options.Clouds)
		began, waits, ended := time.Now(), 0, make(chan cloudReading, maxConcurrentGroups)
		for _, name := range []string{"a", "b", "c", "d"} {
			go func() { ended <- c.readCloudOrRecent(t.Context(), v1alpha1.CloudGroup{Provider: "hung", Group: name}) }()
		}
		synctest.Wait()
		for len(ended) > 0 {
			if reading := <-ended; reading.isPostponed && !reading.known {
				waits++
			}
		}
		if waits != maxConcurrentGroups/2 {
			t.Errorf("%d of %d workers are free while the cloud hangs, want %d", waits, maxConcurrentGroups, maxConcurrentGroups/2)
		}
		if reading := c.readCloudOrRecent(t.Context(), v1alpha1.CloudGroup{Provider: "azure", Group: "ci"}); !reading.known || time.Since(began) > 0 {
			t.Errorf("the other cloud: %+v after %s", reading, time.Since(began))
		}
		for range maxConcurrentGroups / 2 {
			if reading := <-ended; reading.err == nil || time.Since(began) > cloud.ReadTimeout {
				t.Errorf("the hung call: %v after %s, want an error within %s", reading.err, time.Since(began), cloud.ReadTimeout)
			}
		}
	})
}

func TestThrottlingCloudIsReadAgainWithinAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFixture(t)
		s.cloud.err = &cloud.ThrottledError{RetryAfter: 30 * 24 * time.Hour, Err: errors.New("429")}
		c := s.newController()
		where := v1alpha1.CloudGroup{Provider: "azure", Group: "ci"}
		c.options.Clouds = map[string]cloud.Provider{"azure": &s.cloud}
		c.cloudSlots = cloud.NewWorkerLimiter(maxConcurrentGroups, c.options.Clouds)
		for _, want := range []struct {
			after time.Duration
			read  bool
		}{{0, false}, {59 * time.Minute, false}, {time.Minute, true}} {
			time.Sleep(want.after)
			reading := c.readCloudOrRecent(t.Context(), where)
			s.cloud.err = nil
			check.Is(t, want.read, reading.err == nil, want.after, reading.err)
		}
	})
}
