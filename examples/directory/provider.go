//go:build unix

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/slipway-dev/slipway/examples/directory/machines"
	"github.com/slipway-dev/slipway/plugin"
)

// provider is a plugin.Provider for the machines of one directory.
type provider struct {
	config
	hypervisor machines.Hypervisor
	now        func() time.Time
}

// Name implements plugin.Provider.
func (p *provider) Name() string { return "directory" }

const scheme = "directory://"

// providerID returns a machine's provider ID: directory://HOST/GROUP/NAME. With the host's name, the machines of two
// hosts have different IDs.
func (p *provider) providerID(group, name string) string {
	return scheme + p.Host + "/" + group + "/" + name
}

// parseProviderID returns the group and the name in a provider ID of this host.
func (p *provider) parseProviderID(id string) (group, name string, err error) {
	rest, ours := strings.CutPrefix(id, scheme)
	parts := strings.Split(rest, "/")
	switch {
	case !ours || len(parts) != 3 || !machines.ValidName(parts[1]) || !machines.ValidName(parts[2]):
		return "", "", fmt.Errorf("provider ID %q: want %sHOST/GROUP/NAME", id, scheme)
	case parts[0] != p.Host:
		return "", "", fmt.Errorf("provider ID %q: host is %q: want %q", id, parts[0], p.Host)
	}
	return parts[1], parts[2], nil
}

// Normalize implements plugin.Provider.
func (p *provider) Normalize(id string) (string, error) {
	group, name, err := p.parseProviderID(id)
	if err != nil {
		return "", err
	}
	return p.providerID(group, name), nil
}

// Group implements plugin.Provider.
func (p *provider) Group(ctx context.Context, name string) (g plugin.Group, err error) {
	err = p.withLock(ctx, name, func(v machines.View) error {
		group, err := v.Group(name)
		if err != nil {
			return err
		}
		size, err := v.Size(name)
		g = plugin.Group{Name: name, Size: size, Min: group.Min, Max: group.Max}
		return err
	})
	return g, err
}

// Instances implements plugin.Provider.
func (p *provider) Instances(ctx context.Context, group string) (list []plugin.Instance, err error) {
	err = p.withLock(ctx, group, func(v machines.View) error {
		all, err := v.Machines(group)
		for name, m := range all {
			list = append(list, p.toInstance(group, name, m))
		}
		return err
	})
	if err != nil {
		return nil, err // never a shorter list
	}
	return list, nil
}

// Instance implements plugin.Provider.
func (p *provider) Instance(ctx context.Context, id string) (i plugin.Instance, err error) {
	group, name, err := p.parseProviderID(id)
	if err != nil {
		return i, err
	}
	err = p.withLock(ctx, id, func(v machines.View) error {
		m, err := v.Machine(group, name)
		i = p.toInstance(group, name, m)
		return err
	})
	return i, err
}

// toInstance converts a machine of the directory to an instance.
func (p *provider) toInstance(group, name string, m machines.Machine) plugin.Instance {
	i := plugin.Instance{
		ProviderID: p.providerID(group, name), Name: name, ComputerName: name, Group: group, Zone: p.Host,
		Type: m.Template, Created: m.Created, State: plugin.Pending,
		// A new machine with the same name has the same ID, but another creation time.
		UniqueID: name + "@" + m.Created.UTC().Format(time.RFC3339Nano),
	}
	switch {
	case m.Failed != "":
		i.State, i.Message = plugin.Failed, m.Failed
	case !m.Deleting.IsZero():
		i.State = plugin.Deleting
	case m.IsBooted(p.now()):
		i.State = plugin.Running
	}
	return i
}

// operation is the content of plugin.Operation.ID. Another process can follow the operation, because the machine's file
// records its deletion.
type operation struct {
	Delete string   `json:"delete,omitempty"`
	Grow   []string `json:"grow,omitempty"`
}

func (p *provider) newOperation(o operation) (plugin.Operation, error) {
	id, err := json.Marshal(o)
	return plugin.Operation{ID: string(id), Started: p.now()}, err
}

// Delete implements plugin.Provider. If the deletion is already in progress, it returns an operation that follows this
// deletion.
func (p *provider) Delete(ctx context.Context, id string) (op plugin.Operation, err error) {
	group, name, err := p.parseProviderID(id)
	if err != nil {
		return op, err
	}
	err = p.withLock(ctx, id, func(v machines.View) error {
		m, err := v.Machine(group, name)
		if err != nil {
			return err
		}
		if !m.Deleting.IsZero() {
			return nil
		}
		g, err := v.Group(group)
		if err != nil {
			return err
		}
		size, err := v.Size(group)
		if err != nil {
			return err
		}
		if size <= g.Min {
			return &plugin.RefusedError{Reason: plugin.AtLimit, Err: fmt.Errorf("group %s is at its minimum of %d", group, g.Min)}
		}
		m.Deleting, m.Failed = p.now(), ""
		return v.SetMachine(group, name, m)
	})
	if err != nil {
		return op, err
	}
	return p.newOperation(operation{Delete: id})
}

// Templates implements plugin.Provider.
func (p *provider) Templates(ctx context.Context, group string) (list []plugin.Template, err error) {
	err = p.withLock(ctx, group, func(v machines.View) error {
		g, err := v.Group(group)
		for _, t := range g.Templates {
			template := plugin.Template{Name: t.Name, Zone: p.Host}
			template.Labels, template.Cost, template.Capacity = t.Labels, t.Cost, corev1.ResourceList{}
			for name, text := range t.Capacity {
				q, wrong := resource.ParseQuantity(text)
				err = errors.Join(err, wrong)
				template.Capacity[corev1.ResourceName(name)] = q
			}
			list = append(list, template)
		}
		return err
	})
	return list, err
}

// Grow implements plugin.Provider.
func (p *provider) Grow(ctx context.Context, group string, order plugin.LaunchRequest) (op plugin.Operation, err error) {
	if err := order.Validate(group); err != nil {
		return op, err
	}
	var made []string
	err = p.withLock(ctx, group, func(v machines.View) error {
		g, err := v.Group(group)
		if err != nil {
			return err
		}
		template, err := selectTemplate(g, order.Template)
		if err != nil {
			return err
		}
		size, err := v.Size(group)
		if err != nil {
			return err
		}
		if g.Max > 0 && size+order.Count > g.Max {
			return &plugin.RefusedError{Reason: plugin.AtLimit, Err: fmt.Errorf("group %s has %d machines of at most %d", group, size, g.Max)}
		}
		if n, err := countMachines(v); err != nil || n+order.Count > v.Host.Quota {
			return errors.Join(err, &plugin.RefusedError{
				Reason: plugin.NoQuota, Err: fmt.Errorf("the host has %d machines of at most %d", n, v.Host.Quota),
			})
		}
		for range order.Count {
			name := group + "-" + strings.ToLower(rand.Text()[:8])
			m := machines.Machine{Template: template, Created: p.now(), Boot: p.BootSeconds, Shutdown: p.ShutdownSeconds}
			if err := v.SetMachine(group, name, m); err != nil {
				return err
			}
			made = append(made, p.providerID(group, name))
		}
		return nil
	})
	if err != nil {
		return op, err
	}
	return p.newOperation(operation{Grow: made})
}

// selectTemplate returns the name of the requested template. If want is empty, it returns the group's first template.
func selectTemplate(g machines.Group, want string) (string, error) {
	var names []string
	for _, t := range g.Templates {
		if want == "" || t.Name == want {
			return t.Name, nil
		}
		names = append(names, t.Name)
	}
	return "", &plugin.RefusedError{Reason: plugin.Invalid, Err: fmt.Errorf("template %q: want one of %s", want, strings.Join(names, ", "))}
}

// countMachines returns the number of machines in all groups of the host.
func countMachines(v machines.View) (n int, err error) {
	groups, err := v.Groups()
	for _, group := range groups {
		all, wrong := v.Machines(group)
		n, err = n+len(all), errors.Join(err, wrong)
	}
	return n, err
}

// Status implements plugin.Provider.
func (p *provider) Status(ctx context.Context, op plugin.Operation) (plugin.OperationStatus, error) {
	if op.ID == "" {
		return plugin.OperationStatus{Done: true}, nil
	}
	var o operation
	d := json.NewDecoder(bytes.NewReader([]byte(op.ID)))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil || (o.Delete == "") == (len(o.Grow) == 0) {
		return plugin.OperationStatus{}, fmt.Errorf("operation %q: not an operation of this plugin", op.ID)
	}
	if o.Delete != "" {
		i, err := p.Instance(ctx, o.Delete)
		switch {
		case isNotFound(err):
			return plugin.OperationStatus{Done: true}, nil
		case err != nil:
			return plugin.OperationStatus{}, err
		case i.State == plugin.Failed:
			return plugin.OperationStatus{Done: true, Err: errors.New(i.Message)}, nil
		}
		return plugin.OperationStatus{}, nil
	}
	for _, id := range o.Grow {
		i, err := p.Instance(ctx, id)
		if err != nil && !isNotFound(err) {
			return plugin.OperationStatus{}, err
		}
		if err == nil && i.State == plugin.Pending {
			return plugin.OperationStatus{}, nil
		}
	}
	return plugin.OperationStatus{Done: true}, nil
}

// withLock calls do while it holds the lock of the directory. It converts ErrNoGroup and ErrNoMachine to a
// NotFoundError. A missing directory or an unreadable file stays another error.
func (p *provider) withLock(ctx context.Context, asked string, do func(machines.View) error) error {
	err := p.hypervisor.WithLock(ctx, do)
	switch {
	case errors.Is(err, machines.ErrNoGroup):
		return &plugin.NotFoundError{Kind: "group", Name: asked}
	case errors.Is(err, machines.ErrNoMachine):
		return &plugin.NotFoundError{Kind: "instance", Name: asked}
	}
	return err
}

func isNotFound(err error) bool {
	var notFound *plugin.NotFoundError
	return errors.As(err, &notFound)
}
