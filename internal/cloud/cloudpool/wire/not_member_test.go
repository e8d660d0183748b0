package wire_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

// TestOnlyServer404MeansNotMember: a 404 of a proxy or of a read request does not count.
func TestOnlyServer404MeansNotMember(t *testing.T) {
	for name, c := range map[string]struct {
		code   int
		answer string
		want   bool
	}{
		"the server":         {404, `{"message":"unrecognized machine","detail":""}`, true},
		"an ingress":         {404, "default backend - 404", false},
		"a 404 of its cloud": {500, `{"message":"cloud: 404 Not Found: no such region","detail":""}`, false},
	} {
		client := newTestClient(t, "", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.code)
			fmt.Fprint(w, c.answer)
		})
		if err := client.Terminate(t.Context(), wire.Removal{MachineID: "m"}); err == nil || wire.ContainsNotMember(err.Error()) != c.want {
			t.Errorf("%s: %v: no member: %t, want %t", name, err, !c.want, c.want)
		}
		if _, err := client.Pool(t.Context()); err == nil || wire.ContainsNotMember(err.Error()) {
			t.Errorf("%s, reading the pool: %v; want no statement about a machine", name, err)
		}
	}
}
