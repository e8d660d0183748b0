package cloudpool

import "net/http"

// Native answers for a pool that has no server of its own.
type Native struct{}

func (*Native) serve(_ *Server, w http.ResponseWriter, _ *http.Request, _ *Front, _ target) {
	say(w, http.StatusNotFound, "not found", "")
}
