package externalgrpc

import (
	"context"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// toProviderError converts the error of a call. It never returns a NotFoundError, because a proxy or a starting provider may
// also return NOT_FOUND (I7).
func (p *Provider) toProviderError(ctx context.Context, method string, err error) error {
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("provider %s: %s: %w", p.config.Name, method, err)
	if ctx.Err() != nil { // the caller cancelled
		return fmt.Errorf("provider %s: %s: %w", p.config.Name, method, context.Cause(ctx))
	}
	st := status.Convert(err)
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return &cloud.ThrottledError{RetryAfter: max(0, info.GetRetryDelay().AsDuration()), Err: wrapped}
		}
	}
	switch {
	case st.Code() == codes.PermissionDenied || st.Code() == codes.Unauthenticated:
		return &cloud.RefusedError{Reason: cloud.NoRight, Err: wrapped}
	case st.Code() == codes.ResourceExhausted && method == "NodeGroupIncreaseSize":
		return &cloud.RefusedError{Reason: cloud.NoQuota, Err: wrapped}
	}
	return wrapped
}
