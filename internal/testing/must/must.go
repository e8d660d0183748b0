// Package must ends a test that cannot continue.
package must

// T is a test. *testing.T, *testing.B, *testing.F and *rapid.T implement it.
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
