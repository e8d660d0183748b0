package cloudpool

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

// defaultRetryDelay is the retry delay if the server does not ask for one.
const defaultRetryDelay = 30 * time.Second

// toProviderError converts the error of a server to the errors of [cloud.Provider]. A 404 stays a plain error, because
// its meaning depends on the request and on its sender.
func toProviderError(what string, err error) error {
	status := wire.AsStatusError(err)
	if status == nil {
		return fmt.Errorf("cloudpool %s: %w", what, err)
	}
	message := strings.ToLower(status.Message + " " + status.Detail)
	switch {
	case status.Code == http.StatusTooManyRequests, status.Code == http.StatusServiceUnavailable && status.RetryAfter > 0:
		pause := status.RetryAfter
		if pause == 0 {
			pause = defaultRetryDelay
		}
		return &cloud.ThrottledError{RetryAfter: pause, Err: fmt.Errorf("cloudpool %s: %w", what, err)}
	case status.Code == http.StatusUnauthorized, status.Code == http.StatusForbidden:
		return newRefusedError(cloud.NoRight, what, err)
	case !status.FromServer:
	case strings.Contains(message, "cannot be evicted"):
		return newRefusedError(cloud.Protected, what, err)
	case strings.Contains(message, "quota"), strings.Contains(message, "limitexceeded"):
		return newRefusedError(cloud.NoQuota, what, err)
	case status.Code == http.StatusBadRequest:
		return newRefusedError(cloud.Invalid, what, err)
	}
	return fmt.Errorf("cloudpool %s: %w", what, err)
}

func newRefusedError(reason cloud.Refusal, what string, err error) error {
	return &cloud.RefusedError{Reason: reason, Err: fmt.Errorf("cloudpool %s: %w", what, err)}
}
