package cloud

import (
	"errors"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/check"
)

func TestNodeMatchesByIDUUIDOrName(t *testing.T) {
	const id = "3f0e9cbe-0f3c-4b5e-9d2a-0123456789ab"
	machine := Instance{ProviderID: "cloud:///" + id, Name: "Worker-1", ComputerName: "host-1"}
	normalize := func(id string) (string, error) {
		switch {
		case strings.HasPrefix(id, "silent:"):
			return "", &ProviderUnavailableError{Err: errors.New("the plugin is not running")}
		case !strings.HasPrefix(id, "cloud://"):
			return "", errors.New("an ID of another cloud")
		}
		return strings.ToLower(id), nil
	}
	for name, c := range map[string]struct {
		host       NodeIdentity
		has        bool
		unanswered bool
	}{
		"its provider ID":                 {NodeIdentity{Name: "a", ProviderID: "cloud:///" + strings.ToUpper(id)}, true, false},
		"its system's UUID":               {NodeIdentity{Name: "a", SystemUUID: strings.ToUpper(id)}, true, false},
		"its name":                        {NodeIdentity{Name: "worker-1"}, true, false},
		"its name with a domain":          {NodeIdentity{Name: "worker-1.novalocal"}, true, false},
		"its host name":                   {NodeIdentity{Name: "host-1"}, true, false},
		"its host name with a domain":     {NodeIdentity{Name: "host-1.example.com"}, true, false},
		"nothing":                         {NodeIdentity{Name: "worker-2", ProviderID: "cloud:///other", SystemUUID: "other"}, false, false},
		"the beginning of its name":       {NodeIdentity{Name: "worker-11"}, false, false},
		"an ID of another cloud":          {NodeIdentity{Name: "a", ProviderID: "aws:///" + id}, false, false},
		"an ID that cannot be normalized": {NodeIdentity{Name: "a", ProviderID: "silent:///" + id}, false, true},
		"its name, and an unreadable ID":  {NodeIdentity{Name: "worker-1", ProviderID: "silent:///" + id}, true, false},
	} {
		node, err := NewNodeIndex(normalize, []NodeIdentity{c.host}).FindNode(machine)
		check.Not(t, (node == c.host.Name) != c.has || IsProviderUnavailable(err) != c.unanswered, "%s: %q, %v", name, node, err)
	}
	if node, err := NewNodeIndex(normalize, []NodeIdentity{{Name: "a"}}).FindNode(Instance{ProviderID: "x"}); node != "" || err != nil {
		t.Errorf("instance without names: %q, %v", node, err)
	}
}
