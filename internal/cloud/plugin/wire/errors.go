// Package wire turns what package cloud speaks of into messages of the plugin protocol and back. Both ends use it:
// Slipway, and the programs that are written with package plugin.
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

// MaxMessage is the size in bytes up to which either end reads a message: a list of some 25,000 machines.
const MaxMessage = 16 << 20

// maxText is how much of an error's text is carried, in bytes: the headers of HTTP/2, where it travels, are bounded.
const maxText = 2048

// FromError gives an error's message, with what it means; nil for nil.
func FromError(err error) *pluginv1.Error {
	if err == nil {
		return nil
	}
	message := &pluginv1.Error{Message: short(err.Error())}
	var notFound *cloud.NotFoundError
	var throttled *cloud.ThrottledError
	var refused *cloud.RefusedError
	switch {
	case errors.As(err, &notFound):
		message.Kind = &pluginv1.Error_NotFound{NotFound: &pluginv1.NotFound{
			Kind: notFound.Kind, Name: short(notFound.Name),
		}}
	case errors.As(err, &throttled):
		message.Kind = &pluginv1.Error_Throttled{Throttled: &pluginv1.Throttled{
			After: durationpb.New(throttled.After), Message: inner(throttled.Err),
		}}
	case errors.As(err, &refused):
		message.Kind = &pluginv1.Error_Refused{Refused: &pluginv1.Refused{
			Reason: FromRefusal(refused.Reason), Message: inner(refused.Err),
		}}
	}
	return message
}

// ToError gives the error of a message, with the text and the kind that it had on the other side; nil for nil.
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
			After: max(0, kind.Throttled.GetAfter().AsDuration()), Err: errors.New(kind.Throttled.GetMessage()),
		}
	case *pluginv1.Error_Refused:
		if reason := ToRefusal(kind.Refused.GetReason()); reason != "" {
			cause = &cloud.RefusedError{Reason: reason, Err: errors.New(kind.Refused.GetMessage())}
		}
	}
	text := message.GetMessage()
	if text == "" {
		text = "the plugin says no more of this error"
	}
	return &remoteError{text, cause}
}

// remoteError is an error of the other side: its whole text, and what it means.
type remoteError struct {
	text  string
	cause error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.cause }

// StatusOf gives the gRPC status of an error of a provider.
func StatusOf(err error) error {
	if err == nil {
		return nil
	}
	// One that was wrapped says more.
	if own, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return own.GRPCStatus().Err()
	}
	message := FromError(err)
	st := status.New(codeOf(err), message.GetMessage())
	if detailed, failed := st.WithDetails(message); failed == nil {
		st = detailed
	}
	return st.Err()
}

// codeOf chooses the code that comes nearest, for those who do not read details.
func codeOf(err error) codes.Code {
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

// OfStatus gives the error that a call has ended with, and whether it is the plugin's own answer. One that something in
// between, or gRPC itself, has made never is: a status of the code NOT_FOUND means nothing without its detail (I7).
func OfStatus(err error) (_ error, answered bool) {
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

func inner(err error) string {
	if err == nil {
		return ""
	}
	return short(err.Error())
}

// short cuts a text that is too long for its way, between two characters.
func short(text string) string {
	const more = "…"
	if len(text) <= maxText {
		return valid(text)
	}
	return valid(text[:maxText-len(more)]) + more
}
