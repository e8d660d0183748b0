package controlplane

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// AuditFilter selects requests of the audit log. A zero field matches every request.
type AuditFilter struct {
	// UserAgent is a prefix of the client's user agent.
	UserAgent string
	// User is the user name, such as system:serviceaccount:NAMESPACE:NAME.
	User string
	// Verb is one of get, list, watch, create, update, patch, delete, deletecollection.
	Verb string
	// Resource is the plural, with a subresource after a slash: "pods", "pods/eviction".
	Resource        string
	Namespace, Name string
	// Since is the earliest arrival time of the request.
	Since time.Time
}

func (f AuditFilter) matches(e *auditv1.Event) bool {
	if !strings.HasPrefix(e.UserAgent, f.UserAgent) || f.User != "" && e.User.Username != f.User ||
		f.Verb != "" && e.Verb != f.Verb || e.RequestReceivedTimestamp.Time.Before(f.Since) {
		return false
	}
	var object auditv1.ObjectReference
	if e.ObjectRef != nil {
		object = *e.ObjectRef
	}
	resource := object.Resource
	if object.Subresource != "" {
		resource += "/" + object.Subresource
	}
	return (f.Resource == "" || resource == f.Resource) && (f.Namespace == "" || object.Namespace == f.Namespace) &&
		(f.Name == "" || object.Name == f.Name)
}

// mayMatchLine returns false if a line of the log cannot match the filter. It avoids decoding most lines. It
// searches for the filter's values as they are, because JSON escapes none of them.
func (f AuditFilter) mayMatchLine(line []byte) bool {
	resource, _, _ := strings.Cut(f.Resource, "/")
	for _, value := range []string{f.User, f.Verb, resource, f.Namespace, f.Name} {
		if !bytes.Contains(line, []byte(value)) {
			return false
		}
	}
	return true
}

// ReadAuditLog returns the requests in the audit log that match the filter. Each request is returned once, with its
// last log entry. The first log entries determine the order: the response of a request, or the start of a watch.
// ReadAuditLog ignores entries that are written during the call. Otherwise it might never end, because a busy API
// server may write faster than ReadAuditLog reads.
func (c *Cluster) ReadAuditLog(f AuditFilter) ([]auditv1.Event, error) {
	log, err := os.Open(c.AuditLogFile())
	if err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	defer func() { _ = log.Close() }() // read only
	now, err := log.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	return readAudit(io.LimitReader(log, now.Size()), f)
}

func readAudit(log io.Reader, f AuditFilter) ([]auditv1.Event, error) {
	var events []auditv1.Event
	seen := map[string]int{}
	lines := bufio.NewReader(log)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // the API server is still writing this line
			return events, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		if !f.mayMatchLine(line) {
			continue
		}
		var event auditv1.Event
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("line %d of the audit log: %w", number, err)
		}
		if !f.matches(&event) {
			continue
		}
		if at, again := seen[string(event.AuditID)]; again {
			events[at] = event
			continue
		}
		seen[string(event.AuditID)] = len(events)
		events = append(events, event)
	}
}
