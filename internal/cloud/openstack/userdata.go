package openstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"
	"time"

	"github.com/Masterminds/sprig/v3"
	corev1 "k8s.io/api/core/v1"
)

// Joiner makes what machines join the cluster with. Its methods may be called concurrently.
type Joiner interface {
	// Issue makes something for the machine of that name alone, which ends by itself if the machine does not come.
	Issue(ctx context.Context, machine string) (Join, error)
	// Withdraw takes back what was issued for a machine that will not come.
	Withdraw(ctx context.Context, machine string) error
}

// Join is what a machine joins its cluster with, in the terms of kubeadm join.
type Join struct {
	// Token is a bootstrap token, ID.SECRET.
	Token string
	// Expires is when it ends.
	Expires time.Time
	// Server is the API server's host and port.
	Server string
	// CACertHash is the value of --discovery-token-ca-cert-hash: sha256:…
	CACertHash string
	// CACert is the cluster's certificate authority, in PEM.
	CACert string
}

// Machine is what the template of user data is filled in with.
type Machine struct {
	Name    string // the server's name, which is its host name too
	Cluster string
	Group   string
	Flavor  string
	Zone    string // empty where Nova chooses
	Region  string
	Labels  string // of the group's nodes.labels, as kubelet's --node-labels takes them: a=b,c=d
	Taints  string // of nodes.taints, as --register-with-taints takes them: key=value:Effect
	Join    Join
}

// maxUserData is the most that Nova takes, in bytes after their encoding in base64.
const maxUserData = 65535

// userData is a template of user data. A nil one is none.
type userData struct {
	template *template.Template
	usesJoin bool
}

func (u *userData) joins() bool { return u != nil && u.usesJoin }

// compileUserData reads the template of a group and fills it in with an example, so that whatever is wrong with it is
// known at the start and not when machines are needed. Fields that do not exist are found in branches not taken, too.
func compileUserData(g *GroupConfig, canJoin bool) (*userData, error) {
	text, err := g.template()
	if err != nil || text == "" {
		return nil, err
	}
	field := "userData"
	if g.UserDataFile != "" {
		field = "userDataFile " + g.UserDataFile
	}
	u, err := parseUserData(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	if u.usesJoin && !canJoin {
		return nil, fmt.Errorf("%s: has .Join, and this command has no cluster to join", field)
	}
	if _, err := u.render(exampleMachine()); err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return u, nil
}

// parseUserData reads a template, and checks its fields without filling it in.
func parseUserData(text string) (*userData, error) {
	t, err := template.New("userData").Option("missingkey=error").Funcs(sprig.HermeticTxtFuncMap()).Parse(text)
	if err != nil {
		return nil, err
	}
	var w walker
	for _, defined := range t.Templates() {
		if defined.Tree != nil {
			// What a named template is called with is not known before; the main one gets a Machine.
			w.main = defined.Name() == t.Name()
			w.walk(defined.Root, machineIf(w.main))
		}
	}
	return &userData{template: t, usesJoin: w.join}, errors.Join(w.errs...)
}

func exampleMachine() Machine {
	return Machine{
		Name: "example-222222", Cluster: "example", Group: "example", Flavor: "example", Zone: "example", Region: "example",
		Labels: "a=b", Taints: "a=b:NoSchedule", Join: Join{
			Token: "abcdef.0123456789abcdef", Server: "192.0.2.1:6443", CACertHash: "sha256:" + strings.Repeat("0", 64),
			CACert: "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n", Expires: time.Unix(0, 0).UTC(),
		},
	}
}

func (u *userData) render(m Machine) ([]byte, error) {
	var out bytes.Buffer
	if err := u.template.Execute(&out, m); err != nil {
		return nil, err
	}
	if encoded := (out.Len() + 2) / 3 * 4; encoded > maxUserData {
		return nil, invalid("user data of %d bytes: want at most %d, as Nova takes %d after their encoding", out.Len(), maxUserData/4*3, maxUserData)
	}
	return out.Bytes(), nil
}

var machineType = reflect.TypeFor[Machine]()

func machineIf(known bool) reflect.Type {
	if known {
		return machineType
	}
	return nil
}

// walker checks the fields of a template. The dot's type is nil where it cannot be known.
type walker struct {
	main bool // in the main template, where $ is the Machine
	join bool
	errs []error
}

func (w *walker) walk(node parse.Node, dot reflect.Type) {
	switch n := node.(type) {
	case *parse.ListNode:
		if n == nil {
			return
		}
		for _, child := range n.Nodes {
			w.walk(child, dot)
		}
	case *parse.ActionNode:
		w.walk(n.Pipe, dot)
	case *parse.TemplateNode:
		w.walk(n.Pipe, dot)
		w.join = w.join || n.Pipe != nil // it may be handed the Machine
	case *parse.IfNode:
		w.branch(&n.BranchNode, dot, dot)
	case *parse.WithNode:
		w.branch(&n.BranchNode, dot, w.typeOf(n.Pipe, dot))
	case *parse.RangeNode:
		w.branch(&n.BranchNode, dot, nil)
	case *parse.PipeNode:
		w.pipe(n, dot)
	default:
		w.operand(node, dot)
	}
}

func (w *walker) pipe(n *parse.PipeNode, dot reflect.Type) {
	if n == nil {
		return
	}
	for _, command := range n.Cmds {
		for _, argument := range command.Args {
			w.walk(argument, dot)
		}
	}
}

// operand checks what a command is given.
func (w *walker) operand(node parse.Node, dot reflect.Type) {
	switch n := node.(type) {
	case *parse.FieldNode:
		w.field(n.Ident, dot, n.String())
	case *parse.VariableNode:
		if n.Ident[0] == "$" && w.main {
			w.field(n.Ident[1:], machineType, n.String())
		}
	case *parse.ChainNode:
		w.walk(n.Node, dot)
	case *parse.DotNode:
		w.join = w.join || dot == machineType
	}
}

func (w *walker) branch(n *parse.BranchNode, dot, inside reflect.Type) {
	w.walk(n.Pipe, dot)
	w.walk(n.List, inside)
	w.walk(n.ElseList, dot)
}

// typeOf gives the type of a pipe that is one field, and nil for any other.
func (w *walker) typeOf(pipe *parse.PipeNode, dot reflect.Type) reflect.Type {
	if pipe == nil || len(pipe.Cmds) != 1 || len(pipe.Cmds[0].Args) != 1 {
		return nil
	}
	path := []string{}
	switch n := pipe.Cmds[0].Args[0].(type) {
	case *parse.FieldNode:
		path = n.Ident
	case *parse.VariableNode:
		if n.Ident[0] != "$" || !w.main {
			return nil
		}
		path, dot = n.Ident[1:], machineType
	case *parse.DotNode:
	default:
		return nil
	}
	for _, name := range path {
		if dot = fieldType(dot, name); dot == nil {
			return nil
		}
	}
	return dot
}

// field follows a path of fields as far as its types are known.
func (w *walker) field(path []string, dot reflect.Type, shown string) {
	w.join = w.join || dot == machineType && (len(path) == 0 || path[0] == "Join")
	for _, name := range path {
		if dot == nil {
			return
		}
		next := fieldType(dot, name)
		if next == nil {
			w.errs = append(w.errs, fmt.Errorf("%s: %q is no field of %s: want %s", shown, name, dot.Name(), fieldsOf(dot)))
			return
		}
		dot = next
	}
}

// fieldType gives the type of a field, or of what a method returns; nil for what does not exist.
func fieldType(of reflect.Type, name string) reflect.Type {
	if of == nil {
		return nil
	}
	if of.Kind() == reflect.Struct {
		if f, ok := of.FieldByName(name); ok && f.IsExported() {
			return f.Type
		}
	}
	if m, ok := of.MethodByName(name); ok && m.Type.NumOut() > 0 {
		return m.Type.Out(0)
	}
	return nil
}

func fieldsOf(t reflect.Type) string {
	if t.Kind() != reflect.Struct || t.NumField() == 0 {
		return "none"
	}
	var names []string
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() {
			names = append(names, f.Name)
		}
	}
	return "one of " + strings.Join(names, ", ")
}

// taintList writes taints as kubelet takes them.
func taintList(taints []corev1.Taint) string {
	var all []string
	for _, t := range taints {
		all = append(all, fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect))
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}
