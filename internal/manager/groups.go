package manager

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// Conditions, if set, gives those of a group of the file, which has no object to write them on.
	Conditions func(group string) []metav1.Condition

	mu    sync.Mutex
	read  time.Time // the file's time of change when it was read
	inUse []v1alpha1.NodeGroup
}

// List gives all groups. A file that cannot be read any more leaves in force what it said before.
func (g *Groups) List(ctx context.Context) ([]v1alpha1.NodeGroup, error) {
	var list v1alpha1.NodeGroupList
	if err := g.Reader.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("NodeGroups: %w", err)
	}
	if g.File == "" && g.Given == nil {
		return list.Items, nil
	}
	if err := g.Refresh(); err != nil {
		g.Log.Error("the file of NodeGroups cannot be read; what it said before stays in force", "err", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	all := list.Items
	known := map[string]bool{}
	for i := range all {
		known[all[i].Name] = true
	}
	more := g.inUse
	if g.Given != nil {
		more = append(slices.Clone(more), g.Given()...)
	}
	for _, group := range more {
		if known[group.Name] {
			continue
		}
		if g.Conditions != nil {
			group.Status.Conditions = g.Conditions(group.Name)
		}
		known[group.Name] = true
		all = append(all, group)
	}
	return all, nil
}

// Refresh reads the file if it has changed since.
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
		if len(bytes.TrimSpace(doc)) == 0 {
			continue
		}
		var g v1alpha1.NodeGroup
		if err := yaml.UnmarshalStrict(doc, &g); err != nil {
			errs = append(errs, fmt.Errorf("document %d: %w", i, err))
			continue
		}
		if err := fillIn(&g, doc); err != nil {
			errs = append(errs, fmt.Errorf("document %d: %w", i, err))
		}
		for _, err := range check(&g) {
			errs = append(errs, fmt.Errorf("document %d (%s): %w", i, g.Name, err))
		}
		if names[g.Name] {
			errs = append(errs, fmt.Errorf("document %d: metadata.name: %q is there twice", i, g.Name))
		}
		names[g.Name] = true
		groups = append(groups, g)
	}
}

func check(g *v1alpha1.NodeGroup) (errs []error) {
	fail := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if gvk := g.GroupVersionKind(); gvk != v1alpha1.GroupVersion.WithKind("NodeGroup") {
		fail("apiVersion %q, kind %q: want %s and NodeGroup", g.APIVersion, g.Kind, v1alpha1.GroupVersion)
	}
	if g.Name == "" {
		fail("metadata.name: is empty")
	}
	return append(errs, nodegroup.Check(g)...)
}

// fillIn gives a field its default that has another meaning when it is zero, as the API server would.
func fillIn(g *v1alpha1.NodeGroup, doc []byte) error {
	if g.Spec.ScaleDown == nil || g.Spec.ScaleDown.IdleByLabel == nil {
		return nil
	}
	var said struct {
		Spec struct {
			ScaleDown struct {
				IdleByLabel struct {
					Cooldown *metav1.Duration `json:"cooldown"`
				} `json:"idleByLabel"`
			} `json:"scaleDown"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(doc, &said); err != nil {
		return err
	}
	if said.Spec.ScaleDown.IdleByLabel.Cooldown == nil {
		g.Spec.ScaleDown.IdleByLabel.Cooldown.Duration = defaultCooldown
	}
	return nil
}

// defaultCooldown is that of the CRD.
const defaultCooldown = 10 * time.Minute
