// Package check reports errors in a test and lets the test continue.
package check

import (
	"fmt"
	"strings"

	"github.com/google/go-cmp/cmp"
)

// T is the part of a test that this package calls. *testing.T, *testing.B, *testing.F and *rapid.T implement it.
type T interface {
	Helper()
	Errorf(format string, args ...any)
}

// Equal reports an error with the differences if want and got are not equal.
func Equal(t T, want, got any, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Is reports an error with got if want and got are not equal by ==. It prints the context too, such as the row of a table.
func Is[V comparable](t T, want, got V, context ...any) {
	t.Helper()
	if got != want {
		if len(context) > 0 {
			t.Errorf("%s", fmt.Sprint(context...))
		}
		t.Errorf("got %v, want %v", got, want)
	}
}

// Len reports an error with got if it has another number of elements.
func Len[E any](t T, want int, got []E) {
	t.Helper()
	if len(got) != want {
		t.Errorf("got %d, want %d: %+v", len(got), want, got)
	}
}

// Not reports an error in the given format if wrong is true. It evaluates its arguments in every case.
func Not(t T, wrong bool, format string, args ...any) {
	t.Helper()
	if wrong {
		t.Errorf(format, args...)
	}
}

// NoError reports an error if err is not nil.
func NoError(t T, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("got the error %v, want none", err)
	}
}

// Contains reports an error for each of parts that text does not contain.
func Contains(t T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("got %s\nwant %q in it", text, part)
		}
	}
}

// ErrorContains reports an error if err is nil, and an error for each of parts that the text of err does not contain.
func ErrorContains(t T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", parts)
		return
	}
	Contains(t, err.Error(), parts...)
}

// Err returns only the error of a call with two results.
func Err[R any](_ R, err error) error { return err }
