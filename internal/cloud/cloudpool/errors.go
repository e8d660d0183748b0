package cloudpool

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

// defaultPause is how long a server is left alone that wants to be and does not say for how long.
const defaultPause = 30 * time.Second

// classify says what an error of a server means to a caller. A 404 is a plain error: what it means depends on what was
// asked for, and on who said it.
func classify(what string, err error) error {
	status := wire.AsStatus(err)
	if status == nil {
		return fmt.Errorf("cloudpool %s: %w", what, err)
	}
	message := strings.ToLower(status.Message + " " + status.Detail)
	switch {
	case status.Code == http.StatusTooManyRequests, status.Code == http.StatusServiceUnavailable && status.After > 0:
		pause := status.After
		if pause == 0 {
			pause = defaultPause
		}
		return &cloud.ThrottledError{After: pause, Err: fmt.Errorf("cloudpool %s: %w", what, err)}
	case status.Code == http.StatusUnauthorized, status.Code == http.StatusForbidden:
		return refused(cloud.NoRight, what, err)
	case !status.Own:
	case strings.Contains(message, "cannot be evicted"):
		return refused(cloud.Protected, what, err)
	case strings.Contains(message, "quota"), strings.Contains(message, "limitexceeded"):
		return refused(cloud.NoQuota, what, err)
	case status.Code == http.StatusBadRequest:
		return refused(cloud.Invalid, what, err)
	}
	return fmt.Errorf("cloudpool %s: %w", what, err)
}

func refused(reason cloud.Refusal, what string, err error) error {
	return &cloud.RefusedError{Reason: reason, Err: fmt.Errorf("cloudpool %s: %w", what, err)}
}
