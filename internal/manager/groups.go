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
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// Groups gives the NodeGroups of the API server and those of a file. It is safe for concurrent use.
type Groups struct {
	// Reader reads NodeGroups, from a cache if need be.
	Reader client.Reader
	// File, if set, holds more of them. One of a name that the API server has too is passed over.
	File string
	// Fixed are more of them, under the same rule.
	Fixed []v1alpha1.NodeGroup
	Log   *slog.Logger

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
	if g.File == "" && len(g.Fixed) == 0 {
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
	for _, group := range slices.Concat(g.inUse, g.Fixed) {
		if !known[group.Name] {
			all = append(all, group)
		}
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
	switch selector, err := metav1.LabelSelectorAsSelector(&g.Spec.NodeSelector); {
	case err != nil:
		fail("spec.nodeSelector: %w", err)
	case selector.Empty():
		fail("spec.nodeSelector: is empty and would select every node: give matchLabels or matchExpressions")
	}
	if g.Spec.Cloud.Provider == "" || g.Spec.Cloud.Group == "" {
		fail("spec.cloud: provider %q, group %q: want both", g.Spec.Cloud.Provider, g.Spec.Cloud.Group)
	}
	if g.Spec.Minimum < 0 || g.Spec.Maximum != nil && *g.Spec.Maximum < g.Spec.Minimum {
		fail("spec.minimum: %d: want 0 to spec.maximum", g.Spec.Minimum)
	}
	if err := budget.Check(g.Spec.DisruptionBudgets, time.Now()); err != nil {
		fail("spec.%w", err)
	}
	return errs
}
