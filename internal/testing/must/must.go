// Package must ends a test at once after an error.
package must

// T is the part of a test that this package calls. *testing.T, *testing.B, *testing.F and *rapid.T implement it.
type T interface {
	Helper()
	Fatal(args ...any)
}

// NoError ends the test if err is not nil.
func NoError(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
