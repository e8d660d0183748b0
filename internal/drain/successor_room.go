package drain

// SuccessorRoom says where the successor of a pod could run now. A drain does not need it: the scheduler chooses the node.
type SuccessorRoom struct {
	// Fits is true if an existing node or a new instance would take the successor.
	Fits bool `json:"fits"`
	// LaunchSeconds is how long the new instance may take. It is 0 for an existing node.
	LaunchSeconds float64 `json:"launchSeconds,omitempty"`
	// Detail says which new instance would take the successor, or why it fits nowhere. Problem says why the room is unknown.
	Detail  string `json:"detail,omitempty"`
	Problem string `json:"problem,omitempty"`
}

// String returns the room in one line, such as "room: another node". It returns "" for nil.
func (r *SuccessorRoom) String() string {
	switch {
	case r == nil:
		return ""
	case r.Problem != "":
		return "room: unknown: " + r.Problem
	case !r.Fits:
		return "room: none: " + r.Detail
	case r.LaunchSeconds > 0:
		return "room: " + r.Detail + " (up to " + roundSeconds(r.LaunchSeconds) + ")"
	}
	return "room: another node"
}
