// Package check reports what a test finds wrong. The test continues.
package check

import (
	"fmt"
	"strings"

	"github.com/google/go-cmp/cmp"
)

// T is a test. *testing.T, *testing.B, *testing.F and *rapid.T implement it.
type T interface {
	Helper()
	Errorf(format string, args ...any)
}

// Equal reports the differences between want and got.
func Equal(t T, want, got any, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Is reports got if it is not want. The context is printed with it, such as the row of a table.
func Is[V comparable](t T, want, got V, context ...any) {
	t.Helper()
	if got != want {
		if len(context) > 0 {
			t.Errorf("%s", fmt.Sprint(context...))
		}
		t.Errorf("got %v, want %v", got, want)
	}
}

// Len reports got if it does not have the wanted number of elements.
func Len[E any](t T, want int, got []E) {
	t.Helper()
	if len(got) != want {
		t.Errorf("got %d, want %d: %+v", len(got), want, got)
	}
}

// Not reports what is wrong.
func Not(t T, wrong bool, format string, args ...any) {
	t.Helper()
	if wrong {
		t.Errorf(format, args...)
	}
}

// NoError reports err if it is not nil.
func NoError(t T, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("got the error %v, want none", err)
	}
}

// Contains reports each part that text does not have.
func Contains(t T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("got %s\nwant %q in it", text, part)
		}
	}
}

// ErrorContains reports an error that is nil, and each part that its text does not have.
func ErrorContains(t T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", parts)
		return
	}
	Contains(t, err.Error(), parts...)
}

// Err drops the result of a call and returns its error.
func Err[R any](_ R, err error) error { return err }
