// Package wire converts between package cloud and the messages of the plugin protocol. Slipway and the programs with
// package plugin use it.
package wire

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pluginv1 "github.com/slipway-dev/slipway/api/plugin/v1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// MaxMessage is the maximum size of a message in bytes. It is enough for about 25,000 instances.
const MaxMessage = 16 << 20

// maxTextLength limits the text of an error in bytes, because HTTP/2 headers are limited.
const maxTextLength = 2048

// FromError converts an error and its kind; nil for nil.
func FromError(err error) *pluginv1.Error {
	if err == nil {
		return nil
	}
	message := &pluginv1.Error{Message: truncate(err.Error())}
	var notFound *cloud.NotFoundError
	var throttled *cloud.ThrottledError
	var refused *cloud.RefusedError
	switch {
	case errors.As(err, &notFound):
		message.Kind = &pluginv1.Error_NotFound{NotFound: &pluginv1.NotFound{
			Kind: notFound.Kind, Name: truncate(notFound.Name),
		}}
	case errors.As(err, &throttled):
		message.Kind = &pluginv1.Error_Throttled{Throttled: &pluginv1.Throttled{
			After: durationpb.New(throttled.RetryAfter), Message: errorText(throttled.Err),
		}}
	case errors.As(err, &refused):
		message.Kind = &pluginv1.Error_Refused{Refused: &pluginv1.Refused{
			Reason: FromRefusal(refused.Reason), Message: errorText(refused.Err),
		}}
	}
	return message
}

// ToError converts an error with its original text and kind; nil for nil.
func ToError(message *pluginv1.Error) error {
	if message == nil {
		return nil
	}
	var cause error
	switch kind := message.GetKind().(type) {
	case *pluginv1.Error_NotFound:
		if kind.NotFound != nil {
			cause = &cloud.NotFoundError{Kind: kind.NotFound.GetKind(), Name: kind.NotFound.GetName()}
		}
	case *pluginv1.Error_Throttled:
		cause = &cloud.ThrottledError{
			RetryAfter: max(0, kind.Throttled.GetAfter().AsDuration()), Err: errors.New(kind.Throttled.GetMessage()),
		}
	case *pluginv1.Error_Refused:
		if reason := ToRefusal(kind.Refused.GetReason()); reason != "" {
			cause = &cloud.RefusedError{Reason: reason, Err: errors.New(kind.Refused.GetMessage())}
		}
	}
	text := message.GetMessage()
	if text == "" {
		text = "the plugin returned an error without a message"
	}
	return &remoteError{text, cause}
}

// remoteError is an error of the other side, with its text and its kind.
type remoteError struct {
	text  string
	cause error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.cause }

// ToStatus returns the gRPC status of a provider's error.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	// A wrapped error has more information.
	if own, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return own.GRPCStatus().Err()
	}
	message := FromError(err)
	st := status.New(toCode(err), message.GetMessage())
	if detailed, failed := st.WithDetails(message); failed == nil {
		st = detailed
	}
	return st.Err()
}

// toCode returns the closest gRPC code, for clients that do not read details.
func toCode(err error) codes.Code {
	switch {
	case cloud.IsNotFound(err):
		return codes.NotFound
	case cloud.IsThrottled(err):
		return codes.ResourceExhausted
	case cloud.RefusalOf(err) == cloud.NoRight:
		return codes.PermissionDenied
	case cloud.RefusalOf(err) != "":
		return codes.FailedPrecondition
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	}
	return codes.Unknown
}

// FromStatus returns the error of a call and whether the plugin itself returned it. A status from gRPC or a proxy has no
// detail and does not count: NOT_FOUND without its detail means nothing (I7).
func FromStatus(err error) (_ error, answered bool) {
	st, ok := status.FromError(err)
	if !ok || st == nil {
		return err, false
	}
	for _, detail := range st.Details() {
		message, ok := detail.(*pluginv1.Error)
		if ok && (message.GetNotFound() == nil || st.Code() == codes.NotFound) {
			return ToError(message), true
		}
	}
	return err, false
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return truncate(err.Error())
}

// truncate truncates a text at a character boundary.
func truncate(text string) string {
	const more = "…"
	if len(text) <= maxTextLength {
		return toValidUTF8(text)
	}
	return toValidUTF8(text[:maxTextLength-len(more)]) + more
}
