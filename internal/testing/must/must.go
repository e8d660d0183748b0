// Package must ends a test at once after an error.
package must

// T is the part of a test that this package calls. *testing.T, *testing.B, *testing.F and *rapid.T implement it.
type T interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// NoError ends the test if err is not nil.
func NoError(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Not ends the test with what is wrong.
func Not(t T, wrong bool, format string, args ...any) {
	t.Helper()
	if wrong {
		t.Fatalf(format, args...)
	}
}

// Get ends the test if err is not nil, and otherwise returns the value: must.Get(os.ReadFile(name))(t).
func Get[V any](value V, err error) func(t T) V {
	return func(t T) V {
		t.Helper()
		NoError(t, err)
		return value
	}
}
