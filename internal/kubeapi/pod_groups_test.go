package kubeapi

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestPodGroupIsReadInServedVersion(t *testing.T) {
	object := `{"metadata":{"name":"gang"},"spec":{%s}}`
	for name, c := range map[string]struct{ version, spec, want string }{
		"1.37":        {"v1beta1", `"disruptionMode":{"all":{}}`, `{"all":{}}`},
		"1.37, alpha": {"v1alpha3", `"disruptionMode":{"single":{}}`, `{"single":{}}`},
		"1.36":        {"v1alpha2", `"disruptionMode":"PodGroup"`, `"PodGroup"`},
		"default":     {"v1beta1", ``, ``},
	} {
		api := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/apis/scheduling.k8s.io/"+c.version+"/namespaces/ml/podgroups/gang" {
				http.NotFound(w, r) // as the API server answers for an API that it does not serve
				return
			}
			fmt.Fprintf(w, object, c.spec)
		})
		g, err := api.GetPodGroup(t.Context(), "ml", "gang")
		must.NoError(t, err)
		check.Is(t, c.want, string(g.Spec.DisruptionMode), name)
	}
}

func TestUnreadablePodGroupHasItsReason(t *testing.T) {
	status := func(code int, reason string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			fmt.Fprintf(w, `{"kind":"Status","reason":%q,"message":"podgroups \"gang\" %s"}`, reason, strings.ToLower(reason))
		}
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
		paths  int
	}{
		"not served":     {http.NotFound, "serves no podgroups of scheduling.k8s.io", 3},
		"does not exist": {status(404, "NotFound"), "notfound (NotFound)", 1},
		"forbidden":      {status(403, "Forbidden"), "forbidden (Forbidden)", 1},
		"no object":      {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }, "no metadata.name", 1},
	} {
		var paths []string
		api := serve(t, func(w http.ResponseWriter, r *http.Request) {
			paths = append(paths, r.URL.Path)
			c.answer(w, r)
		})
		_, err := api.GetPodGroup(t.Context(), "ml", "gang")
		check.ErrorContains(t, err, c.want)
		check.Not(t, len(slices.Compact(paths)) != c.paths, "%s: requests %v", name, paths)
	}
}
