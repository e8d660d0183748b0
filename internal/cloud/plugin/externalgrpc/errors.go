package externalgrpc

import (
	"context"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// meaning gives the error of a call. None is a NotFoundError: a proxy, or a provider that has just been started, says
// NOT_FOUND too (I7).
func (p *Provider) meaning(ctx context.Context, method string, err error) error {
	if err == nil {
		return nil
	}
	said := fmt.Errorf("provider %s: %s: %w", p.config.Name, method, err)
	if ctx.Err() != nil { // the caller has left
		return fmt.Errorf("provider %s: %s: %w", p.config.Name, method, context.Cause(ctx))
	}
	st := status.Convert(err)
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return &cloud.ThrottledError{After: max(0, info.GetRetryDelay().AsDuration()), Err: said}
		}
	}
	switch {
	case st.Code() == codes.PermissionDenied || st.Code() == codes.Unauthenticated:
		return &cloud.RefusedError{Reason: cloud.NoRight, Err: said}
	case st.Code() == codes.ResourceExhausted && method == "NodeGroupIncreaseSize":
		return &cloud.RefusedError{Reason: cloud.NoQuota, Err: said}
	}
	return said
}
