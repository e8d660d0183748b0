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
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
)

// Groups gives the NodeGroups of the API server and those of a file. It is safe for concurrent use.
type Groups struct {
	// Reader reads NodeGroups, from a cache if need be.
	Reader client.Reader
	// File, if set, holds more of them. One of a name that the API server has too is passed over.
	File string
	// Given, if set, gives still more, which rank as those of the file.
	Given func() []v1alpha1.NodeGroup
	Log   *slog.Logger
	// Selector is which groups are acted on; nil is all. The others are listed too.
	Selector labels.Selector
	// Status, if set, gives that of a group of the file, which has no object to write it on.
	Status func(group string) v1alpha1.NodeGroupStatus

	metrics *groupMetrics // nil is none

	mu       sync.Mutex
	read     time.Time // the file's time of change when it was read
	inUse    []v1alpha1.NodeGroup
	refusal  string          // what was last said against the file
	shadowed map[string]bool // the groups of which it was said that another one has their name
}

// List gives all groups. A file that cannot be read any more, or that is empty all at once, leaves in force what it said before.
func (g *Groups) List(ctx context.Context) ([]v1alpha1.NodeGroup, error) {
	var list v1alpha1.NodeGroupList
	if err := g.Reader.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("NodeGroups: %w", err)
	}
	if g.File == "" && g.Given == nil {
		return list.Items, nil
	}
	if g.File != "" {
		g.sayFile(g.Refresh())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	all := list.Items
	known := map[string]*v1alpha1.NodeGroup{}
	for i := range list.Items {
		known[list.Items[i].Name] = &list.Items[i]
	}
	more := slices.Clone(g.inUse)
	if g.Given != nil {
		more = append(more, g.Given()...)
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
	g.sayShadowed(shadowed)
	return all, nil
}

// Refresh reads the file if it has changed since. One that has NodeGroups no more is refused as well.
func (g *Groups) Refresh() error {
	if g.File == "" {
		return nil
	}
	info, err := os.Stat(g.File)
	if err != nil {
		return fmt.Errorf("--node-groups: %w", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if info.ModTime().Equal(g.read) {
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
	if len(groups) == 0 && len(g.inUse) > 0 {
		return fmt.Errorf("--node-groups: %s: has no NodeGroup any more, which is taken for a slip: start anew without any if that is meant", g.File)
	}
	g.inUse, g.read = groups, info.ModTime()
	return nil
}

// ParseGroups reads NodeGroups from YAML documents, and checks what the API server would. The error names everything
// that is wrong.
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
		g, wrong := parseGroup(doc)
		if g == nil && wrong == nil {
			continue
		}
		for _, err := range wrong {
			errs = append(errs, fmt.Errorf("%s: %w", called(i, g), err))
		}
		if g == nil {
			continue
		}
		if names[g.Name] {
			errs = append(errs, fmt.Errorf("document %d: metadata.name: %q is there twice", i, g.Name))
		}
		names[g.Name] = true
		groups = append(groups, *g)
	}
}

// called is a document of a file, with the name of what is in it.
func called(i int, g *v1alpha1.NodeGroup) string {
	if g == nil || g.Name == "" {
		return fmt.Sprintf("document %d", i)
	}
	return fmt.Sprintf("document %d (%s)", i, g.Name)
}

// groupFields has the fields of a NodeGroup, so that unknown ones are refused. Its parts have no UnmarshalJSON, inside of
// which a strict decoder does not see fields.
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

// parseGroup reads one NodeGroup, and finds everything that is wrong with it. One that cannot be read at all is nil, and so
// is that of a document in which nothing is but comments.
func parseGroup(doc []byte) (*v1alpha1.NodeGroup, []error) {
	var object map[string]any
	err := yaml.Unmarshal(doc, &object)
	if err == nil && object == nil {
		return nil, nil
	}
	if err == nil {
		err = yaml.UnmarshalStrict(doc, &groupFields{})
	}
	if err == nil {
		err = nodegroup.FillIn(object)
	}
	if err != nil {
		return nil, []error{err}
	}
	whole, err := json.Marshal(object)
	if err != nil {
		return nil, []error{err}
	}
	g := &v1alpha1.NodeGroup{}
	if err := json.Unmarshal(whole, g); err != nil {
		return nil, []error{err}
	}
	return g, check(g, object)
}

// check finds what is wrong with a NodeGroup, which is written as object.
func check(g *v1alpha1.NodeGroup, object map[string]any) (errs []error) {
	if gvk := g.GroupVersionKind(); gvk != v1alpha1.GroupVersion.WithKind("NodeGroup") {
		errs = append(errs, fmt.Errorf("apiVersion %q, kind %q: want %s and NodeGroup", g.APIVersion, g.Kind, v1alpha1.GroupVersion))
	}
	for _, err := range validation.ValidateObjectMeta(&g.ObjectMeta, false, validation.NameIsDNSSubdomain, field.NewPath("metadata")) {
		errs = append(errs, err)
	}
	errs = append(errs, nodegroup.CheckSchema(object)...)
	return append(errs, nodegroup.Check(g)...)
}
