package cloudpool

import (
	"net/url"
	"slices"
	"strings"
)

// action is what a path asks of a pool.
type action string

// The actions that are more than to pass on.
const (
	actSize       action = "pool/size"
	actPool       action = "pool"
	actTerminate  action = "terminate"
	actDetach     action = "detach"
	actAttach     action = "attach"
	actMembership action = "membershipstatus"
	actService    action = "servicestate"
	actConfig     action = "config"
	actStart      action = "start"
	actStop       action = "stop"
	actStatus     action = "status"
	// actItself is the pool's own path, by which a server of several makes pools and deletes them.
	actItself action = "/"
	actOther  action = ""
)

// multiSegment begins the path of a pool among several.
const multiSegment = "cloudpools"

// target is what a request is about.
type target struct {
	// pool is the name in a path /cloudpools/{name}; empty when there is none.
	pool   string
	action action
}

// readPath says what a path asks for, by whichever of those who may stand between here and the server: percent-encoding, also
// of what is encoded, slashes too many and at the end, dot segments, parameters of segments and letter case are all
// passed over. A path that one of them might take for that of an action is that action's.
func readPath(escaped string) target {
	segments := plainSegments(escaped)
	var t target
	if len(segments) >= 2 && segments[0] == multiSegment {
		t.pool, segments = segments[1], segments[2:]
	}
	if len(segments) == 2 && segments[0] == "pool" && segments[1] != "size" {
		segments = segments[1:] // the paths of a single pool; a server of several has none of the prefix
	}
	if len(segments) == 0 {
		t.action = actItself
		return t
	}
	path := action(strings.Join(segments, "/"))
	known := []action{
		actSize, actPool, actTerminate, actDetach, actAttach, actMembership, actService, actConfig, actStart, actStop, actStatus,
	}
	if slices.Contains(known, path) {
		t.action = path
	}
	return t
}

// decodings is how often a path may have been encoded over and over.
const decodings = 5

// plainSegments are the segments of a path, decoded and in lower case.
func plainSegments(escaped string) []string {
	for range decodings {
		decoded, err := url.PathUnescape(escaped)
		if err != nil || decoded == escaped {
			break
		}
		escaped = decoded
	}
	var segments []string
	for s := range strings.FieldsFuncSeq(escaped, func(r rune) bool { return r == '/' || r == '\\' }) {
		s, _, _ = strings.Cut(s, ";")
		switch s = strings.ToLower(strings.TrimSpace(s)); s {
		case "", ".":
		case "..":
			segments = segments[:max(0, len(segments)-1)]
		default:
			segments = append(segments, s)
		}
	}
	return segments
}
