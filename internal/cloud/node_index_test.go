package cloud

import (
	"errors"
	"strings"
	"testing"
)

func TestNodeMatchesByIDUUIDOrName(t *testing.T) {
	const id = "3f0e9cbe-0f3c-4b5e-9d2a-0123456789ab"
	machine := Instance{ProviderID: "cloud:///" + id, Name: "Worker-1", ComputerName: "host-1"}
	normalize := func(id string) (string, error) {
		switch {
		case strings.HasPrefix(id, "silent:"):
			return "", &UnansweredError{Err: errors.New("the plugin is not running")}
		case !strings.HasPrefix(id, "cloud://"):
			return "", errors.New("an ID of another cloud")
		}
		return strings.ToLower(id), nil
	}
	for name, c := range map[string]struct {
		host       Host
		has        bool
		unanswered bool
	}{
		"its provider ID":                 {Host{Name: "a", ProviderID: "cloud:///" + strings.ToUpper(id)}, true, false},
		"its system's UUID":               {Host{Name: "a", SystemUUID: strings.ToUpper(id)}, true, false},
		"its name":                        {Host{Name: "worker-1"}, true, false},
		"its name with a domain":          {Host{Name: "worker-1.novalocal"}, true, false},
		"its host name":                   {Host{Name: "host-1"}, true, false},
		"its host name with a domain":     {Host{Name: "host-1.example.com"}, true, false},
		"nothing":                         {Host{Name: "worker-2", ProviderID: "cloud:///other", SystemUUID: "other"}, false, false},
		"the beginning of its name":       {Host{Name: "worker-11"}, false, false},
		"an ID of another cloud":          {Host{Name: "a", ProviderID: "aws:///" + id}, false, false},
		"an ID that cannot be normalized": {Host{Name: "a", ProviderID: "silent:///" + id}, false, true},
		"its name, and an unreadable ID":  {Host{Name: "worker-1", ProviderID: "silent:///" + id}, true, false},
	} {
		node, err := NewHosts(normalize, []Host{c.host}).Of(machine)
		if (node == c.host.Name) != c.has || IsUnanswered(err) != c.unanswered {
			t.Errorf("%s: %q, %v", name, node, err)
		}
	}
	if node, err := NewHosts(normalize, []Host{{Name: "a"}}).Of(Instance{ProviderID: "x"}); node != "" || err != nil {
		t.Errorf("instance without names: %q, %v", node, err)
	}
}
