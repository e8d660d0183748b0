package cloud_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
)

func TestOutcomeReadsTheWrappedError(t *testing.T) {
	plain := errors.New("broken")
	for want, err := range map[string]error{
		"ok":        nil,
		"not-found": &cloud.NotFoundError{Kind: "instance", Name: "x"},
		"throttled": &cloud.ThrottledError{Err: plain},
		"refused":   &cloud.RefusedError{Reason: cloud.NoQuota, Err: plain},
		"error":     plain,
	} {
		if err != nil {
			err = fmt.Errorf("reading the group: %w", err)
		}
		if got := cloud.OutcomeLabel(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}

func TestRetryDelayIsCappedAtAnHour(t *testing.T) {
	for after, want := range map[time.Duration]time.Duration{
		-time.Second: 0, 0: 0, time.Minute: time.Minute, time.Hour: time.Hour, time.Hour + 1: time.Hour, math.MaxInt64: time.Hour,
	} {
		if got := cloud.RetryDelay(fmt.Errorf("reading the group: %w", &cloud.ThrottledError{RetryAfter: after})); got != want {
			t.Errorf("%s for a delay of %s, want %s", got, after, want)
		}
	}
	for _, err := range []error{nil, errors.New("broken"), &cloud.RefusedError{Reason: cloud.NoQuota}} {
		if got := cloud.RetryDelay(err); got != 0 {
			t.Errorf("%s for %v", got, err)
		}
	}
}
