package openstack

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

// addList registers a list for GETs of a path in any region. It filters by the query parameters that an item has.
func (s *fakeOpenStack) addList(path, key string, items ...map[string]any) {
	s.mux.HandleFunc("GET /{region}/"+path, s.withToken(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		found := slices.DeleteFunc(slices.Clone(items), func(item map[string]any) bool {
			for field, value := range item {
				if want := query.Get(field); want != "" && want != value {
					return true
				}
			}
			return key == "images" && query.Get("visibility") == "" && item["visibility"] == "community"
		})
		if found == nil {
			found = []map[string]any{}
		}
		s.respond(w, http.StatusOK, map[string]any{key: found})
	}))
}

// addDefaults registers everything that the group of good names.
func (s *fakeOpenStack) addDefaults() {
	s.addImages(map[string]any{"id": "image", "name": "ubuntu", "visibility": "public"})
}

// addImages registers these images, and everything else that the group of good names.
func (s *fakeOpenStack) addImages(images ...map[string]any) {
	s.addList("v2.1/flavors/detail", "flavors", map[string]any{"id": "1", "name": "m.2c4g", "vcpus": 2, "ram": 4096})
	s.addList("v2/images", "images", images...)
	s.addList("v2.0/networks", "networks", map[string]any{"id": "net-id", "name": "net"})
}

func TestMissingFlavorDoesNotStopTheOthers(t *testing.T) {
	s := newFakeOpenStack(t)
	s.addDefaults()
	p := s.newProvider("south")
	g := p.groups[0]
	g.Flavors = []string{"m.gone", "m.2c4g"}
	for range 2 {
		templates, err := p.Templates(t.Context(), g.Name)
		if err != nil || len(templates) != 1 || templates[0].Name != "m.2c4g" {
			t.Fatalf("%+v, %v, want the existing flavor", templates, err)
		}
		if _, err := p.Grow(t.Context(), g.Name, cloud.LaunchRequest{Count: 1, Template: "m.2c4g"}); err != nil {
			t.Errorf("server with the existing flavor: %v", err)
		}
		g.clearCachedNames()
	}
	check.ErrorContains(t, p.CheckConfiguredNames(t.Context()), `flavors[0]: "m.gone"`)
	g.clearCachedNames()
	g.Flavors = []string{"m.gone"}
	if _, err := p.Templates(t.Context(), g.Name); cloud.RefusalOf(err) != cloud.Invalid {
		t.Errorf("no flavor exists: %v", err)
	}
}

func TestUnreadableFlavorIsSkipped(t *testing.T) {
	s := newFakeOpenStack(t)
	s.addList("v2.1/flavors/detail", "flavors",
		map[string]any{"id": "1", "name": "m.2c4g", "vcpus": 2, "ram": 4096},
		map[string]any{"id": "2", "name": "g.1", "vcpus": 2, "ram": 4096, "extra_specs": map[string]string{"resources:VGPU": "many"}})
	s.addList("v2/images", "images", map[string]any{"id": "image", "name": "ubuntu"})
	s.addList("v2.0/networks", "networks", map[string]any{"id": "net-id", "name": "net"})
	p := s.newProvider("south")
	p.groups[0].Flavors = []string{"g.1", "m.2c4g"}
	p.groups[0].Resources = []ExtraSpecResource{{"resources:VGPU", "nvidia.com/gpu"}}
	if templates, err := p.Templates(t.Context(), "workers"); err != nil || len(templates) != 1 || templates[0].Name != "m.2c4g" {
		t.Errorf("%+v, %v, want the readable flavor", templates, err)
	}
}

func TestSecurityGroupOfOwnProjectIsPreferred(t *testing.T) {
	group := func(id, project string, shared bool) map[string]any {
		return map[string]any{"id": id, "name": "kube", "project_id": project, "shared": shared}
	}
	for name, tc := range map[string]struct {
		project string
		groups  []map[string]any
		want    string // empty means an error
	}{
		"next to another project's": {"shop", []map[string]any{group("theirs", "blog", false), group("ours", "shop", false)}, "ours"},
		"only another project's":    {"shop", []map[string]any{group("theirs", "blog", false)}, ""},
		"shared":                    {"shop", []map[string]any{group("lent", "blog", true), group("theirs", "mail", false)}, "lent"},
		"two of the project":        {"shop", []map[string]any{group("a", "shop", false), group("b", "shop", false)}, ""},
		"project unknown":           {"", []map[string]any{group("only", "blog", false)}, "only"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeOpenStack(t)
			s.addDefaults()
			s.project = tc.project
			s.addList("v2.0/security-groups", "security_groups", tc.groups...)
			p := s.newProvider("south")
			p.groups[0].SecurityGroups = []string{"kube"}
			r, err := p.resolveNames(t.Context(), p.groups[0])
			switch {
			case tc.want == "" && cloud.RefusalOf(err) != cloud.Invalid:
				t.Errorf("%+v, %v, want an error", r, err)
			case tc.want != "" && (err != nil || r.securityGroups[0] != tc.want):
				t.Errorf("%+v, %v, want %s", r, err, tc.want)
			}
		})
	}
}

func TestImageIsSelectedByVisibility(t *testing.T) {
	image := func(id, visibility string) map[string]any {
		return map[string]any{"id": id, "name": "ubuntu", "visibility": visibility}
	}
	all := []map[string]any{image("everyones", "public"), image("ours", "private"), image("theirs", "community")}
	for visibility, want := range map[string]string{"private": "ours", "public": "everyones", "community": "theirs", "shared": "", "": ""} {
		s := newFakeOpenStack(t)
		s.addImages(all...)
		p := s.newProvider("south")
		p.groups[0].Image.Visibility = visibility
		r, err := p.resolveNames(t.Context(), p.groups[0])
		switch {
		case want == "" && cloud.RefusalOf(err) != cloud.Invalid:
			t.Errorf("%q: %+v, %v, want an error", visibility, r, err)
		case want != "" && (err != nil || r.image != want):
			t.Errorf("%q: %+v, %v, want %s", visibility, r, err, want)
		case visibility == "" && (!strings.Contains(err.Error(), "private") || !strings.Contains(err.Error(), "image.visibility")):
			t.Errorf("two with one name: %v, want their visibility in the error", err)
		}
	}
}
