package manager

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
)

// GroupSource lists the NodeGroups of the API server and of a file. It is safe for concurrent use.
type GroupSource struct {
	// Reader reads NodeGroups, possibly from a cache.
	Reader client.Reader
	// File, if set, has further NodeGroups. A NodeGroup of the API server with the same name takes precedence.
	File string
	// ExtraGroups, if set, returns further NodeGroups, with the precedence of the file's.
	ExtraGroups func() []v1alpha1.NodeGroup
	Log         *slog.Logger
	// Selector selects the groups that this process handles; nil is all. The others are listed too.
	Selector labels.Selector
	// Status, if set, returns the status of a group without an object.
	Status func(group string) v1alpha1.NodeGroupStatus

	metrics *groupMetrics // nil is none

	mu            sync.Mutex
	fileModTime   time.Time // when the file was last read
	fileGroups    []v1alpha1.NodeGroup
	lastFileError string          // last logged error; empty if the file is valid
	shadowed      map[string]bool // groups with a logged name collision
}

// List returns the groups of the API server and of the file. If the file becomes unreadable or empty, the groups that
// were last read from it are returned.
func (g *GroupSource) List(ctx context.Context) ([]v1alpha1.NodeGroup, error) {
	var list v1alpha1.NodeGroupList
	if err := g.Reader.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("NodeGroups: %w", err)
	}
	if g.File == "" && g.ExtraGroups == nil {
		return list.Items, nil
	}
	if g.File != "" {
		g.reportFileState(g.ReloadFileIfChanged())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	all := list.Items
	known := map[string]*v1alpha1.NodeGroup{}
	for i := range list.Items {
		known[list.Items[i].Name] = &list.Items[i]
	}
	more := slices.Clone(g.fileGroups)
	if g.ExtraGroups != nil {
		more = append(more, g.ExtraGroups()...)
	}
	shadowed := map[string]*v1alpha1.NodeGroup{}
	for i := range more {
		group := &more[i]
		if other := known[group.Name]; other != nil {
			shadowed[group.Name] = other
			continue
		}
		if g.Status != nil {
			group.Status = g.Status(group.Name)
		}
		known[group.Name] = group
		all = append(all, *group)
	}
	g.reportShadowedGroups(shadowed)
	return all, nil
}

// ReloadFileIfChanged reads the file if its modification time has changed. If the file had NodeGroups before and has
// none now, it returns an error and keeps the old ones.
func (g *GroupSource) ReloadFileIfChanged() error {
	if g.File == "" {
		return nil
	}
	info, err := os.Stat(g.File)
	if err != nil {
		return fmt.Errorf("--node-groups: %w", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if info.ModTime().Equal(g.fileModTime) {
		return nil
	}
	raw, err := os.ReadFile(g.File)
	if err != nil {
		return fmt.Errorf("--node-groups: %w", err)
	}
	groups, err := ParseGroups(raw)
	if err != nil {
		return fmt.Errorf("--node-groups: %s: %w", g.File, err)
	}
	if len(groups) == 0 && len(g.fileGroups) > 0 {
		return fmt.Errorf("--node-groups: %s: has no NodeGroup any more, which is probably a mistake: restart the manager if it is intended", g.File)
	}
	g.fileGroups, g.fileModTime = groups, info.ModTime()
	return nil
}

// ParseGroups reads NodeGroups from YAML documents and validates them as the API server does. The error lists every
// fault in all documents.
func ParseGroups(raw []byte) ([]v1alpha1.NodeGroup, error) {
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(raw)))
	var groups []v1alpha1.NodeGroup
	var errs []error
	names := map[string]bool{}
	for i := 1; ; i++ {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return groups, errors.Join(errs...)
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i, err)
		}
		g, faults := parseGroup(doc)
		if g == nil && faults == nil {
			continue
		}
		for _, err := range faults {
			errs = append(errs, fmt.Errorf("%s: %w", describeDocument(i, g), err))
		}
		if g == nil {
			continue
		}
		if names[g.Name] {
			errs = append(errs, fmt.Errorf("document %d: metadata.name: %q is used twice", i, g.Name))
		}
		names[g.Name] = true
		groups = append(groups, *g)
	}
}

// describeDocument returns a name for a document of the file, for errors: its number and the name of its NodeGroup.
func describeDocument(i int, g *v1alpha1.NodeGroup) string {
	if g == nil || g.Name == "" {
		return fmt.Sprintf("document %d", i)
	}
	return fmt.Sprintf("document %d (%s)", i, g.Name)
}

// groupFields has the same fields as a NodeGroup. A strict decoder of this type refuses unknown fields. None of its
// fields has a method UnmarshalJSON, because the decoder does not check fields inside such a value.
type groupFields struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   specFields   `json:"spec"`
	Status statusFields `json:"status"`
}

type (
	specFields   v1alpha1.NodeGroupSpec
	statusFields v1alpha1.NodeGroupStatus
)

// parseGroup parses one document and returns every fault in it. The NodeGroup is nil if the document is unreadable or
// has only comments.
func parseGroup(doc []byte) (group *v1alpha1.NodeGroup, faults []error) {
	raw, err := yaml.YAMLToJSONStrict(doc)
	if err != nil {
		return nil, []error{err}
	}
	var object map[string]any
	if err := json.Unmarshal(raw, &object); err != nil {
		return nil, []error{err}
	}
	if object == nil {
		return nil, nil
	}
	// A field name in another case is unknown, as it is for the API server.
	faults, err = kjson.UnmarshalStrict(raw, &groupFields{})
	if err == nil {
		err = nodegroup.ApplyDefaults(object)
	}
	if err != nil {
		faults = append(faults, err)
	}
	if len(faults) > 0 {
		return nil, faults
	}
	if raw, err = json.Marshal(object); err != nil {
		return nil, []error{err}
	}
	g := &v1alpha1.NodeGroup{}
	if err := json.Unmarshal(raw, g); err != nil {
		return nil, []error{err}
	}
	return g, checkGroup(g, object)
}

// checkGroup returns every fault of a NodeGroup. object is the same NodeGroup in unstructured form.
func checkGroup(g *v1alpha1.NodeGroup, object map[string]any) (errs []error) {
	if gvk := g.GroupVersionKind(); gvk != v1alpha1.GroupVersion.WithKind("NodeGroup") {
		errs = append(errs, fmt.Errorf("apiVersion %q, kind %q: want %s and NodeGroup", g.APIVersion, g.Kind, v1alpha1.GroupVersion))
	}
	for _, err := range validation.ValidateObjectMeta(&g.ObjectMeta, false, validation.NameIsDNSSubdomain, field.NewPath("metadata")) {
		errs = append(errs, err)
	}
	errs = append(errs, nodegroup.ValidateSchema(object)...)
	return append(errs, nodegroup.Validate(g)...)
}
