package cloud_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/slipway-dev/slipway/internal/cloud"
)

func TestTheOutcomeOfACallIsThatOfTheErrorWithin(t *testing.T) {
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
		if got := cloud.Outcome(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}
