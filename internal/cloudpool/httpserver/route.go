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

// plainSegments are the segments of a path, decoded and in lower case, without those that mean no place of their own.
func plainSegments(escaped string) []string {
	var segments []string
	for _, s := range decodedSegments(escaped) {
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

// decodings is how often a path may have been encoded over and over.
const decodings = 5

// escape is one encoded byte. What only looks like one is left as it is, lest it keep the others from being read.
var escape = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)

// decodedSegments are what is between the slashes of a path of either kind, decoded and in lower case, without parameters
// and what else ends a path once it is decoded.
func decodedSegments(escaped string) []string {
	for range decodings {
		if !strings.Contains(escaped, "%") {
			break
		}
		escaped = escape.ReplaceAllStringFunc(escaped, func(e string) string {
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

// reads reports a method that changes nothing.
func reads(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

// checkPath says why a request is not passed on whose path is no action's. What changes something has a path that is read
// alike by everybody: servers differ in whether they decode before they cut parameters off and resolve dot segments, or
// after, and one of them might find the path of an action, which would be carried out past all checks. What is read must
// not lead out of its pool.
func checkPath(method, escaped string) error {
	switch {
	case slices.Contains(decodedSegments(escaped), ".."):
		return fmt.Errorf("path %q has a segment .. in it: want one that stays within its pool", escaped)
	case reads(method):
		return nil
	}
	for s := range strings.SplitSeq(strings.TrimSuffix(strings.TrimPrefix(escaped, "/"), "/"), "/") {
		if s == "" || s == "." {
			return fmt.Errorf("path %q has a segment %q in it, which some servers pass over and others do not: want none", escaped, s)
		}
		if ambiguous := ambiguousIn(s); ambiguous != "" {
			return fmt.Errorf("path %q has %q in it, which servers read in different ways: want printable ASCII without \\ and ;, and none of "+
				"/ \\ . ; %% ? # encoded", escaped, ambiguous)
		}
	}
	return nil
}

// ambiguousIn finds what servers may read in different ways in a segment as it was sent; empty when there is nothing.
func ambiguousIn(segment string) string {
	for i := 0; i < len(segment); i++ {
		b, text := segment[i], segment[i:i+1]
		if e := escape.FindString(segment[i:min(len(segment), i+3)]); e != "" {
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

// address is where a request is passed on to. An action's path is written anew, as the pool's server has it: all read it
// alike then, and servers of several pools, which have no /pool before what is asked of one machine, find it. Any other is
// sent on as it came, below the pool's own address.
func (f *Front) address(in *url.URL) *url.URL {
	escaped := in.EscapedPath()
	t := readPath(escaped)
	rest := t.action.path(f.URL)
	if t.action == actOther {
		rest = strings.TrimPrefix(belowPool(escaped, t.pool), "/")
	}
	out := &url.URL{Scheme: f.URL.Scheme, Host: f.URL.Host, RawQuery: in.RawQuery, ForceQuery: in.ForceQuery}
	out.RawPath = strings.TrimRight(f.URL.EscapedPath(), "/")
	if rest != "" || out.RawPath == "" {
		out.RawPath += "/" + rest
	}
	path, err := url.PathUnescape(out.RawPath)
	if err != nil { // not of a URL that was read
		path = out.RawPath
	}
	out.Path = path
	return out
}

// path is an action's in the spelling of the API, below the address of a pool.
func (a action) path(base *url.URL) string {
	switch a {
	case actTerminate, actDetach, actAttach:
		return api.MachinePath(base, string(a))
	case actMembership:
		return api.MachinePath(base, "membershipStatus")
	case actService:
		return api.MachinePath(base, "serviceState")
	case actItself, actOther:
		return ""
	}
	return string(a)
}

// belowPool takes /cloudpools/{name} off a path as it was sent: it is in the pool's own address where it has to be.
func belowPool(escaped, pool string) string {
	parts := strings.SplitN(strings.TrimPrefix(escaped, "/"), "/", 3)
	if pool == "" || len(parts) < 2 || !slices.Equal(plainSegments(parts[0]+"/"+parts[1]), []string{multiSegment, pool}) {
		return escaped
	}
	return strings.Join(parts[2:], "")
}
