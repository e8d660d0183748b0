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

// Joiner issues the credentials that new servers use to join the cluster. Its methods are safe for concurrent use.
type Joiner interface {
	// Issue creates a credential for one server. It expires if the server does not join.
	Issue(ctx context.Context, machine string) (Join, error)
	// Withdraw revokes the credential of a server that will not join.
	Withdraw(ctx context.Context, machine string) error
}

// Join has the values that a server needs to join the cluster, in the terms of kubeadm join.
type Join struct {
	// Token is a bootstrap token, ID.SECRET.
	Token string
	// Expires is the expiry of Token.
	Expires time.Time
	// Server is the host and port of the API server.
	Server string
	// CACertHash is the value of --discovery-token-ca-cert-hash: sha256:…
	CACertHash string
	// CACert is the certificate of the cluster's certificate authority, in PEM.
	CACert string
}

// Machine has the fields for the user data template.
type Machine struct {
	Name    string // the server's name, which is also its host name
	Cluster string
	Group   string
	Flavor  string
	Zone    string // empty if Nova chooses
	Region  string
	Labels  string // the group's nodes.labels in the format of --node-labels: a=b,c=d
	Taints  string // the group's nodes.taints in the format of --register-with-taints: key=value:Effect
	Join    Join
}

// maxUserData is Nova's limit for user data, in bytes after base64 encoding.
const maxUserData = 65535

// userData is a parsed template. Nil means no user data.
type userData struct {
	template *template.Template
	usesJoin bool
}

func (u *userData) needsJoin() bool { return u != nil && u.usesJoin }

// parseAndTestUserData parses the template of a group and renders it with an example, so that errors appear at the start.
// Unknown fields are found in every branch.
func parseAndTestUserData(g *GroupConfig, canJoin bool) (*userData, error) {
	text, err := g.readUserDataTemplate()
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
		return nil, fmt.Errorf("%s: uses .Join, which needs a cluster, and this command has none", field)
	}
	if _, err := u.render(exampleMachine()); err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return u, nil
}

// parseUserData parses a template and checks its fields without rendering it.
func parseUserData(text string) (*userData, error) {
	t, err := template.New("userData").Option("missingkey=error").Funcs(sprig.HermeticTxtFuncMap()).Parse(text)
	if err != nil {
		return nil, err
	}
	var w fieldChecker
	for _, defined := range t.Templates() {
		if defined.Tree != nil {
			// The argument of a named template is unknown. The main template gets a Machine.
			w.inMain = defined.Name() == t.Name()
			w.checkTemplateNode(defined.Root, machineTypeIf(w.inMain))
		}
	}
	return &userData{template: t, usesJoin: w.usesJoin}, errors.Join(w.errs...)
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
		return nil, newInvalidError("user data of %d bytes: want at most %d, because Nova accepts %d after base64 encoding", out.Len(), maxUserData/4*3, maxUserData)
	}
	return out.Bytes(), nil
}

var machineType = reflect.TypeFor[Machine]()

func machineTypeIf(known bool) reflect.Type {
	if known {
		return machineType
	}
	return nil
}

// fieldChecker checks the fields of a template. The type of the dot is nil if unknown.
type fieldChecker struct {
	inMain   bool // in the main template, $ is the Machine
	usesJoin bool
	errs     []error
}

func (w *fieldChecker) checkTemplateNode(node parse.Node, dot reflect.Type) {
	switch n := node.(type) {
	case *parse.ListNode:
		if n == nil {
			return
		}
		for _, child := range n.Nodes {
			w.checkTemplateNode(child, dot)
		}
	case *parse.ActionNode:
		w.checkTemplateNode(n.Pipe, dot)
	case *parse.TemplateNode:
		w.checkTemplateNode(n.Pipe, dot)
		w.usesJoin = w.usesJoin || n.Pipe != nil // the template may receive the Machine
	case *parse.IfNode:
		w.checkTemplateBranch(&n.BranchNode, dot, dot)
	case *parse.WithNode:
		w.checkTemplateBranch(&n.BranchNode, dot, w.typeOfFieldPipe(n.Pipe, dot))
	case *parse.RangeNode:
		w.checkTemplateBranch(&n.BranchNode, dot, nil)
	case *parse.PipeNode:
		w.checkTemplatePipe(n, dot)
	default:
		w.checkOperand(node, dot)
	}
}

func (w *fieldChecker) checkTemplatePipe(n *parse.PipeNode, dot reflect.Type) {
	if n == nil {
		return
	}
	for _, command := range n.Cmds {
		for _, argument := range command.Args {
			w.checkTemplateNode(argument, dot)
		}
	}
}

// checkOperand checks an argument of a command.
func (w *fieldChecker) checkOperand(node parse.Node, dot reflect.Type) {
	switch n := node.(type) {
	case *parse.FieldNode:
		w.checkFieldPath(n.Ident, dot, n.String())
	case *parse.VariableNode:
		if n.Ident[0] == "$" && w.inMain {
			w.checkFieldPath(n.Ident[1:], machineType, n.String())
		}
	case *parse.ChainNode:
		w.checkTemplateNode(n.Node, dot)
	case *parse.DotNode:
		w.usesJoin = w.usesJoin || dot == machineType
	}
}

func (w *fieldChecker) checkTemplateBranch(n *parse.BranchNode, dot, inside reflect.Type) {
	w.checkTemplateNode(n.Pipe, dot)
	w.checkTemplateNode(n.List, inside)
	w.checkTemplateNode(n.ElseList, dot)
}

// typeOfFieldPipe returns the type of a pipe that is a single field, and nil for any other pipe.
func (w *fieldChecker) typeOfFieldPipe(pipe *parse.PipeNode, dot reflect.Type) reflect.Type {
	if pipe == nil || len(pipe.Cmds) != 1 || len(pipe.Cmds[0].Args) != 1 {
		return nil
	}
	path := []string{}
	switch n := pipe.Cmds[0].Args[0].(type) {
	case *parse.FieldNode:
		path = n.Ident
	case *parse.VariableNode:
		if n.Ident[0] != "$" || !w.inMain {
			return nil
		}
		path, dot = n.Ident[1:], machineType
	case *parse.DotNode:
	default:
		return nil
	}
	for _, name := range path {
		if dot = fieldOrMethodType(dot, name); dot == nil {
			return nil
		}
	}
	return dot
}

// checkFieldPath checks a path of fields as far as the types are known.
func (w *fieldChecker) checkFieldPath(path []string, dot reflect.Type, shown string) {
	w.usesJoin = w.usesJoin || dot == machineType && (len(path) == 0 || path[0] == "Join")
	for _, name := range path {
		if dot == nil {
			return
		}
		next := fieldOrMethodType(dot, name)
		if next == nil {
			w.errs = append(w.errs, fmt.Errorf("%s: %s has no field %q: want %s", shown, dot.Name(), name, describeFieldNames(dot)))
			return
		}
		dot = next
	}
}

// fieldOrMethodType returns the type of a field or of a method's result; nil if it does not exist.
func fieldOrMethodType(of reflect.Type, name string) reflect.Type {
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

func describeFieldNames(t reflect.Type) string {
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

// formatTaints formats taints for --register-with-taints.
func formatTaints(taints []corev1.Taint) string {
	var all []string
	for _, t := range taints {
		all = append(all, fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect))
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}
