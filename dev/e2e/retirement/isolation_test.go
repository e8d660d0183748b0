package retirement_test

import "net/http"

// isolation is a transport to the API server that shows only the objects of one test. Otherwise each manager would mostly
// read the objects of other tests, from concurrent and earlier runs.
type isolation struct {
	next http.RoundTripper
	// labels and fields are added to the selectors of lists and watches, by path.
	labels, fields map[string]string
}

func (a isolation) RoundTrip(r *http.Request) (*http.Response, error) {
	label, field := a.labels[r.URL.Path], a.fields[r.URL.Path]
	if r.Method != http.MethodGet || label == "" && field == "" {
		return a.next.RoundTrip(r)
	}
	r = r.Clone(r.Context())
	query := r.URL.Query()
	for selector, more := range map[string]string{"labelSelector": label, "fieldSelector": field} {
		if asked := query.Get(selector); asked != "" && more != "" {
			more = asked + "," + more
		}
		if more != "" {
			query.Set(selector, more)
		}
	}
	r.URL.RawQuery = query.Encode()
	return a.next.RoundTrip(r)
}

// isolate returns a transport that shows only the fixture's own pool.
func (f *fixture) isolate(next http.RoundTripper) isolation {
	mine := shard + "=" + f.name
	return isolation{next: next, labels: map[string]string{
		"/api/v1/nodes":                              "kubernetes.azure.com/agentpool=" + f.pool.Name,
		"/apis/slipway.dev/v1alpha1/nodegroups":      mine,
		"/apis/slipway.dev/v1alpha1/noderetirements": mine,
	}}
}

// withOwnPods shows only the pods of the fixture's own namespace.
func (a isolation) withOwnPods(f *fixture) isolation {
	a.fields = map[string]string{"/api/v1/pods": "metadata.namespace=" + f.name}
	return a
}
