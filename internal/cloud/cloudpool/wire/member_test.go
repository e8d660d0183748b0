package wire_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

// TestOnlyTheServersOwn404MeansNoMember: what is between, and what is read, says nothing of a machine.
func TestOnlyTheServersOwn404MeansNoMember(t *testing.T) {
	for name, c := range map[string]struct {
		code   int
		answer string
		want   bool
	}{
		"its own":                  {404, `{"message":"unrecognized machine","detail":""}`, true},
		"an ingress between":       {404, "default backend - 404", false},
		"a 404 of its cloud, told": {500, `{"message":"cloud: 404 Not Found: no such region","detail":""}`, false},
	} {
		client := ask(t, "", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.code)
			fmt.Fprint(w, c.answer)
		})
		if err := client.Terminate(t.Context(), wire.Removal{MachineID: "m"}); err == nil || wire.IsNotMember(err.Error()) != c.want {
			t.Errorf("%s: %v: no member: %t, want %t", name, err, !c.want, c.want)
		}
		if _, err := client.Pool(t.Context()); err == nil || wire.IsNotMember(err.Error()) {
			t.Errorf("%s, of the pool: %v; want it to say nothing of a machine", name, err)
		}
	}
}
