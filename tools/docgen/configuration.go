package main

import (
	"encoding"
	"encoding/json"
	"fmt"
	"go/ast"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/manager"
	"github.com/slipway-dev/slipway/internal/notice/condition"
	"github.com/slipway-dev/slipway/internal/notify"
)

// allowed are the values of fields that take a few words only, from the code that checks them, by type and field.
var allowed = map[string][]string{
	"condition.Rule.Status":   {"True", "False", "Unknown"},
	"condition.Rule.Action":   condition.Actions(),
	"notify.Receiver.Moments": texts(notify.Moments()),
	"azure.Auth.Method":       azure.Methods(),
}

func texts[T ~string](values []T) []string {
	all := make([]string, len(values))
	for i, v := range values {
		all[i] = string(v)
	}
	return all
}

// fieldTable writes a table of a struct's keys, and of those below them.
type fieldTable struct {
	rows [][3]string // key, type, text
	bare []string    // fields that no comment says anything of
}

func (f *fieldTable) add(prefix string, of reflect.Type) {
	docs, keys := docsOf(of), map[string]string{}
	for field := range fields(of) {
		keys[field.Name] = key(field)
	}
	for field := range fields(of) {
		name, kind := key(field), field.Type
		if name == "" { // what is embedded has its keys here
			f.add(prefix, kind)
			continue
		}
		doc := docs[field.Name]
		if doc == "" {
			doc = saidBefore(field.Name, of, docs, keys)
		}
		text := inText(doc, field.Name, keys)
		if values := allowed[of.String()+"."+field.Name]; values != nil {
			text = strings.TrimSpace(text + " One of " + listed(values) + ".")
		}
		inner, within := structIn(kind)
		if inner == nil {
			if text == "" {
				f.bare = append(f.bare, of.String()+"."+field.Name)
			}
			f.rows = append(f.rows, [3]string{prefix + name, typeName(kind), text})
			continue
		}
		_, said := declared(inner)
		if said = strings.TrimPrefix(inText(said, "", nil), inner.Name()+" "); said != "" {
			text = strings.TrimSpace(text + " " + capital(strings.TrimPrefix(said, "is ")))
		}
		f.rows = append(f.rows, [3]string{prefix + name, typeName(kind), text})
		f.add(prefix+name+within+".", inner)
	}
}

func capital(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// fields are those that a file has.
func fields(of reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range of.NumField() {
			if field := of.Field(i); field.IsExported() && field.Tag.Get("json") != "-" && !yield(field) {
				return
			}
		}
	}
}

// key is what a file calls a field, or nothing when the field's own keys are in its place.
func key(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "" && !f.Anonymous {
		return f.Name
	}
	return name
}

// saidBefore is where another field's comment tells of this one too.
func saidBefore(name string, of reflect.Type, docs, keys map[string]string) string {
	for field := range fields(of) {
		if slices.Contains(words.FindAllString(docs[field.Name], -1), name) {
			return "See `" + keys[field.Name] + "`."
		}
	}
	return ""
}

// structIn is the struct of our own in a type whose keys a file has, and how they are reached.
func structIn(of reflect.Type) (reflect.Type, string) {
	within := ""
	for {
		switch {
		case isText(of):
			return nil, ""
		case of.Kind() == reflect.Pointer:
			of = of.Elem()
		case of.Kind() == reflect.Slice:
			of, within = of.Elem(), within+"[]"
		case of.Kind() == reflect.Map:
			of, within = of.Elem(), within+".NAME"
		case of.Kind() == reflect.Struct && strings.HasPrefix(of.PkgPath(), modulePath):
			return of, within
		default:
			return nil, ""
		}
	}
}

// isText reports a type that a file has as one value, whatever it is made of.
func isText(of reflect.Type) bool {
	for _, way := range []reflect.Type{reflect.TypeFor[encoding.TextUnmarshaler](), reflect.TypeFor[json.Unmarshaler]()} {
		if reflect.PointerTo(of).Implements(way) {
			return true
		}
	}
	return false
}

// typeName says what a type is written as.
func typeName(of reflect.Type) string {
	if of.Kind() == reflect.Pointer {
		return typeName(of.Elem())
	}
	if w, is := reflect.Zero(of).Interface().(interface{ Want() string }); is {
		return w.Want()
	}
	switch of {
	case reflect.TypeFor[cloud.Duration](), reflect.TypeFor[condition.Duration](), reflect.TypeFor[metav1.Duration]():
		return "duration"
	case reflect.TypeFor[resource.Quantity]():
		return "quantity"
	case reflect.TypeFor[corev1.Taint]():
		return "taint"
	case reflect.TypeFor[json.RawMessage]():
		return "anything"
	}
	switch of.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "whole number"
	case reflect.Float64:
		return "number"
	case reflect.Slice:
		return "list of: " + typeName(of.Elem())
	case reflect.Map:
		return typeName(of.Elem()) + ", by name"
	case reflect.Struct:
		return "block"
	}
	return of.String()
}

// table is a struct's keys as Markdown.
func table(prefix string, of reflect.Type) string {
	var f fieldTable
	f.add(prefix, of)
	if len(f.bare) > 0 {
		failf("these fields of files have no comment, and no other field's comment tells of them: %s", strings.Join(f.bare, ", "))
	}
	var b strings.Builder
	b.WriteString("| key | type | |\n|---|---|---|\n")
	for _, row := range f.rows {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", row[0], row[1], inCell.Replace(row[2]))
	}
	return b.String()
}

// agentKeys are the keys of an agent's file that flags have too.
func agentKeys() string {
	var a config.Agent
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	a.AddFlags(flags)
	var b strings.Builder
	b.WriteString("| key | type | default | |\n|---|---|---|---|\n")
	flags.SortFlags = false
	flags.VisitAll(func(f *pflag.Flag) {
		name := config.FlagKey(f.Name)
		if _, err := config.ReadAgent([]byte(name + ":\n")); strings.Contains(err.Error(), "unknown key") {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		if kind == "" {
			kind = "true or false"
		}
		value := ""
		if f.DefValue != "" && f.DefValue != "[]" {
			value = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, kind, value, inCell.Replace(usage))
	})
	return b.String()
}

// variables are the environment variables that programs read themselves, with what for.
var variables = map[string]string{
	"LANG":                               "With `LC_ALL` and `LC_CTYPE`, which go before it: `slipway top` draws in plain ASCII unless it says UTF-8.",
	"OS_*":                               "OpenStack: who asks, as an openrc file has it, where the file of `--cloud-config` has neither `cloud`, `cloudsFile` nor `auth`, and `OS_CLOUD` is not set: ",
	"LC_ALL":                             "See `LANG`.",
	"LC_CTYPE":                           "See `LANG`.",
	"GOGC":                               "How much garbage there may be before it is collected, in per cent of what lives. Unless it is set, processes set one that suits them.",
	"GOMEMLIMIT":                         "Given to a plugin whose memory is limited, unless its `environment` names it: four fifths of the limit.",
	"KUBERNETES_SERVICE_HOST":            "Address of the API server, in a pod without `--kubeconfig`; the kubelet sets it.",
	"KUBERNETES_SERVICE_PORT":            "Port of the API server, in a pod without `--kubeconfig`; the kubelet sets it.",
	"NODE_NAME":                          "The node that an agent guards, unless `--node-name` says so; a DaemonSet sets it from `spec.nodeName`.",
	"OS_CLOUD":                           "OpenStack: entry of `clouds.yaml`, where the file of `--cloud-config` has neither `cloud` nor `auth`.",
	"OTEL_EXPORTER_OTLP_ENDPOINT":        "Where an agent's traces go, unless `--trace-endpoint` says so. The rest of OpenTelemetry's variables count too.",
	"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "As `OTEL_EXPORTER_OTLP_ENDPOINT`, before which it goes.",
	"POD_NAMESPACE":                      "The namespace of a process's own Leases, unless a flag says so; its pod sets it from `metadata.namespace`.",
	"TERM":                               "`slipway top` draws no screen on a terminal that is `dumb` or has no name.",
}

// clouds are what the file of clouds is about, by field.
var clouds = map[string]string{
	"Azure":        "Scale sets and agent pools of AKS ([nodegroups.md](../nodegroups.md)).",
	"OpenStack":    "Servers of Nova ([openstack.md](../openstack.md)).",
	"Cloudpool":    "Servers of the cloudpool REST API, which `slipway cloudpool` stands in front of too ([cloudpool.md](../cloudpool.md)).",
	"Plugins":      "Programs that are a cloud ([plugins.md](../plugins.md)).",
	"ExternalGRPC": "A list: providers of the cluster autoscaler's external gRPC protocol ([plugins.md](../plugins.md)).",
}

func configurationPage() string {
	for _, own := range []string{"NODE_NAME", "POD_NAMESPACE"} { // the defaults of flags
		must(os.Unsetenv(own))
	}
	var b strings.Builder
	b.WriteString("# Configuration\n\nWhat each file can say, and which environment variables are read, as the program itself has them. Durations are written " +
		"as Go writes them,\nsuch as `90s` or `1h30m`; quantities as Kubernetes does, such as `500m` or `16Gi`. A key that means nothing is refused, " +
		"with what was probably meant.\nThe flags of every command are in [commands.md](commands.md); `slipway cloudpool` and `slipway manager` have those, and the file of their clouds. NodeGroups are in [crds.md](crds.md).\n")
	b.WriteString("\n## Agent\n\nThe file of `slipway agent --config`, in YAML. A flag that is given wins over it. [agent.md](../agent.md) says more.\n\n" + agentKeys())
	b.WriteString("\n### conditions\n\nA list: what to do when a condition of the node holds.\n\n" + table("conditions[].", reflect.TypeFor[condition.Rule]()))
	b.WriteString("\n### notifications\n\nA list: who is told of what becomes of the node ([notifications.md](../notifications.md)).\n\n" +
		table("notifications[].", reflect.TypeFor[notify.Receiver]()))
	b.WriteString("\n## Clouds\n\nThe file of `--cloud-config`, in YAML, of `slipway manager`, `slipway cloudpool` and `slipway doctor`. It names one cloud or several.\n")
	for _, field := range reflect.VisibleFields(reflect.TypeFor[manager.Clouds]()) {
		if field.Anonymous {
			continue // what is embedded has its fields after it
		}
		if clouds[field.Name] == "" {
			failf("the reference has no section about the cloud %s", field.Name)
		}
		inner, within := structIn(field.Type)
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n%s", key(field), clouds[field.Name], table(key(field)+within+".", inner))
	}
	b.WriteString("\n## Environment variables\n\nBeside these, programs follow what the libraries of their clouds read: the Azure SDK's `AZURE_*` ([nodegroups.md](../nodegroups.md)) and the `OS_*` of " +
		"an openrc file ([openstack.md](../openstack.md)),\nand `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`. The drop-in commands read those of the tools that they stand in for.\n\n| variable | |\n|---|---|\n")
	told := maps.Clone(variables)
	var openrc []string
	for _, name := range readVariables() {
		if strings.HasPrefix(name, "OS_") && name != "OS_CLOUD" {
			openrc = append(openrc, name)
			continue
		}
		if told[name] == "" {
			failf("$%s is read, and the reference does not say what for", name)
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, told[name])
		delete(told, name)
	}
	fmt.Fprintf(&b, "| `OS_*` | %s%s. |\n", told["OS_*"], listed(openrc))
	delete(told, "OS_*")
	for name := range told {
		failf("the reference tells of $%s, which nothing reads", name)
	}
	return b.String()
}

// variableName is how environment variables are called.
var variableName = regexp.MustCompile(`^[A-Z][A-Z0-9_]{2,}$`)

// readVariables are the environment variables that the code reads: the names in a function that reads some, and those that are
// listed in a variable that is called so. The personalities' own are told by the pages about moving over.
func readVariables() []string {
	var all []string
	in := func(n ast.Node) (names []string, reads bool) {
		ast.Inspect(n, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				reads = reads || slices.Contains([]string{"Getenv", "getenv", "LookupEnv", "env"}, calledName(n))
			case *ast.BasicLit:
				if name, is := textOf(n); is && variableName.MatchString(name) {
					names = append(names, name)
				}
			}
			return true
		})
		return names, reads
	}
	for path, s := range everySource() {
		if strings.HasPrefix(path, "internal/compat/") {
			continue
		}
		s.each(func(n ast.Node) {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if names, reads := in(n); reads {
					all = append(all, names...)
				}
			case *ast.ValueSpec:
				if len(n.Names) == 1 && strings.HasSuffix(n.Names[0].Name, "ariables") {
					names, _ := in(n)
					all = append(all, names...)
				}
			}
		})
	}
	return sorted(all)
}

// calledName is the name of the function that is called, without what it is of.
func calledName(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}
