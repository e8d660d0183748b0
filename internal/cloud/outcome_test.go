package cloud_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
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
		check.Is(t, want, cloud.OutcomeLabel(err), err)
	}
}

func TestRetryDelayIsCappedAtAnHour(t *testing.T) {
	for after, want := range map[time.Duration]time.Duration{
		-time.Second: 0, 0: 0, time.Minute: time.Minute, time.Hour: time.Hour, time.Hour + 1: time.Hour, math.MaxInt64: time.Hour,
	} {
		check.Is(t, want, cloud.RetryDelay(fmt.Errorf("reading the group: %w", &cloud.ThrottledError{RetryAfter: after})), after)
	}
	for _, err := range []error{nil, errors.New("broken"), &cloud.RefusedError{Reason: cloud.NoQuota}} {
		check.Is(t, 0, cloud.RetryDelay(err), err)
	}
}
