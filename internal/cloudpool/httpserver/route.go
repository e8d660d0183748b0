package httpserver

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

// action is the operation of the cloudpool API that a path selects.
type action string

// The known actions.
const (
	actSize         action = "pool/size"
	actPool         action = "pool"
	actTerminate    action = "terminate"
	actDetach       action = "detach"
	actAttach       action = "attach"
	actMembership   action = "membershipstatus"
	actServiceState action = "servicestate"
	actConfig       action = "config"
	actStart        action = "start"
	actStop         action = "stop"
	actStatus       action = "status"
	// actPoolRoot is the pool's own path. A server of several pools creates and deletes pools with it.
	actPoolRoot action = "/"
	actUnknown  action = ""
)

// multiSegment is the first path segment on a server of several pools.
const multiSegment = "cloudpools"

// target is the pool and the operation that a request selects.
type target struct {
	// pool is the name in a path /cloudpools/{name}, or empty.
	pool   string
	action action
}

// parsePath returns the pool and the operation that a path selects. Proxies and servers read unusual paths differently,
// so it reads them as leniently as any of them could. It ignores repeated percent-encoding, extra slashes, dot
// segments, segment parameters and letter case. A path that a server might read as an operation is therefore treated as
// that operation.
func parsePath(escaped string) target {
	segments := normalizeSegments(escaped)
	var t target
	if len(segments) >= 2 && segments[0] == multiSegment {
		t.pool, segments = segments[1], segments[2:]
	}
	if len(segments) == 2 && segments[0] == "pool" && segments[1] != "size" {
		segments = segments[1:] // a server of one pool has the prefix /pool, a server of several has not
	}
	if len(segments) == 0 {
		t.action = actPoolRoot
		return t
	}
	path := action(strings.Join(segments, "/"))
	known := []action{
		actSize, actPool, actTerminate, actDetach, actAttach, actMembership, actServiceState, actConfig, actStart, actStop, actStatus,
	}
	if slices.Contains(known, path) {
		t.action = path
	}
	return t
}

// normalizeSegments returns the segments of a path, decoded and in lower case. It leaves out empty segments and dot
// segments.
func normalizeSegments(escaped string) []string {
	var segments []string
	for _, s := range decodeSegments(escaped) {
		switch s {
		case "", ".":
		case "..":
			segments = segments[:max(0, len(segments)-1)]
		default:
			segments = append(segments, s)
		}
	}
	return segments
}

// maxDecodings is how many times a segment is decoded if it is percent-encoded repeatedly.
const maxDecodings = 5

// escapedByte matches one percent-encoded byte. A malformed escape does not match and stays as it is, so that the
// others are still decoded.
var escapedByte = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)

// decodeSegments splits a path at slashes and backslashes. It decodes the segments, lower-cases them, and cuts off
// parameters, queries and fragments.
func decodeSegments(escaped string) []string {
	for range maxDecodings {
		if !strings.Contains(escaped, "%") {
			break
		}
		escaped = escapedByte.ReplaceAllStringFunc(escaped, func(e string) string {
			raw, err := hex.DecodeString(e[1:])
			if err != nil {
				return e
			}
			return string(raw)
		})
	}
	segments := strings.FieldsFunc(escaped, func(r rune) bool { return r == '/' || r == '\\' })
	for i, s := range segments {
		if end := strings.IndexAny(s, ";?#"); end >= 0 {
			s = s[:end]
		}
		segments[i] = strings.ToLower(strings.TrimSpace(s))
	}
	return segments
}

// isReadOnly reports whether requests with this HTTP method change nothing.
func isReadOnly(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

// checkUnambiguousPath checks a path that selects no known operation. It returns an error if such a request must not be
// forwarded. Servers decode, cut off parameters and resolve dot segments in a different order. So an ambiguous path
// could select an operation on the server that was not checked here. Ambiguous paths are allowed only in read requests.
// No path may lead out of its pool.
func checkUnambiguousPath(method, escaped string) error {
	switch {
	case slices.Contains(decodeSegments(escaped), ".."):
		return fmt.Errorf("path %q contains the segment ..: want a path within the pool", escaped)
	case isReadOnly(method):
		return nil
	}
	for s := range strings.SplitSeq(strings.TrimSuffix(strings.TrimPrefix(escaped, "/"), "/"), "/") {
		if s == "" || s == "." {
			return fmt.Errorf("path %q contains the segment %q, which servers treat differently: want a path without it", escaped, s)
		}
		if ambiguous := findAmbiguousPart(s); ambiguous != "" {
			return fmt.Errorf("path %q contains %q, which servers read differently: want printable ASCII without \\ and ;, and none of "+
				"/ \\ . ; %% ? # encoded", escaped, ambiguous)
		}
	}
	return nil
}

// findAmbiguousPart returns the first part of an encoded segment that servers may read differently. It returns "" if
// there is none.
func findAmbiguousPart(segment string) string {
	for i := 0; i < len(segment); i++ {
		b, text := segment[i], segment[i:i+1]
		if e := escapedByte.FindString(segment[i:min(len(segment), i+3)]); e != "" {
			raw, _ := hex.DecodeString(e[1:])
			b, text = raw[0], e
		}
		if b < ' ' || b > '~' || b == ';' || b == '\\' || text != string(b) && strings.IndexByte("/.%?#", b) >= 0 || text == "%" {
			return text
		}
		i += len(text) - 1
	}
	return ""
}

// backendURL returns the target URL of a forwarded request. If the path selects a known operation, the path is written
// in the spelling of the pool's server, which all servers read alike. Servers of several pools have no prefix /pool for
// machine operations, so that spelling has none for them. Any other path is appended to the pool's URL unchanged.
func (f *ServedPool) backendURL(in *url.URL) *url.URL {
	escaped := in.EscapedPath()
	t := parsePath(escaped)
	rest := t.action.apiPath(f.URL)
	if t.action == actUnknown {
		rest = strings.TrimPrefix(trimPoolPrefix(escaped, t.pool), "/")
	}
	out := &url.URL{Scheme: f.URL.Scheme, Host: f.URL.Host, RawQuery: in.RawQuery, ForceQuery: in.ForceQuery}
	out.RawPath = strings.TrimRight(f.URL.EscapedPath(), "/")
	if rest != "" || out.RawPath == "" {
		out.RawPath += "/" + rest
	}
	path, err := url.PathUnescape(out.RawPath)
	if err != nil { // impossible for a parsed URL
		path = out.RawPath
	}
	out.Path = path
	return out
}

// apiPath returns the path of an operation below the URL of a pool, in the spelling of the cloudpool API.
func (a action) apiPath(base *url.URL) string {
	switch a {
	case actTerminate, actDetach, actAttach:
		return api.MachineActionPath(base, string(a))
	case actMembership:
		return api.MachineActionPath(base, "membershipStatus")
	case actServiceState:
		return api.MachineActionPath(base, "serviceState")
	case actPoolRoot, actUnknown:
		return ""
	}
	return string(a)
}

// trimPoolPrefix removes /cloudpools/{name} from an encoded path. If the pool's server needs that prefix, the pool's
// URL contains it.
func trimPoolPrefix(escaped, pool string) string {
	parts := strings.SplitN(strings.TrimPrefix(escaped, "/"), "/", 3)
	if pool == "" || len(parts) < 2 || !slices.Equal(normalizeSegments(parts[0]+"/"+parts[1]), []string{multiSegment, pool}) {
		return escaped
	}
	return strings.Join(parts[2:], "")
}
