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

// allowedValues maps TYPE.FIELD to the allowed values of the field, for fields with a fixed set of values. The
// values are taken from the code that validates the fields.
var allowedValues = map[string][]string{
	"condition.Rule.Status":   {"True", "False", "Unknown"},
	"condition.Rule.Action":   condition.RuleActions(),
	"notify.Receiver.Moments": toStrings(notify.Moments()),
	"azure.Auth.Method":       azure.AuthMethods(),
}

func toStrings[T ~string](values []T) []string {
	all := make([]string, len(values))
	for i, v := range values {
		all[i] = string(v)
	}
	return all
}

// fieldTable builds a table of the configuration keys of a struct and its nested structs.
type fieldTable struct {
	rows         [][3]string // key, type, text
	undocumented []string    // fields without description
}

func (f *fieldTable) addFields(prefix string, of reflect.Type) {
	docs, keys := fieldDocs(of), map[string]string{}
	for field := range fileFields(of) {
		keys[field.Name] = fileKey(field)
	}
	for field := range fileFields(of) {
		name, kind := fileKey(field), field.Type
		if name == "" { // the keys of an embedded struct belong here
			f.addFields(prefix, kind)
			continue
		}
		doc := docs[field.Name]
		if doc == "" {
			doc = describedElsewhere(field.Name, of, docs, keys)
		}
		text := adaptComment(doc, field.Name, keys)
		if values := allowedValues[of.String()+"."+field.Name]; values != nil {
			text = strings.TrimSpace(text + " One of " + formatList(values) + ".")
		}
		inner, within := findStruct(kind)
		if inner == nil {
			if text == "" {
				f.undocumented = append(f.undocumented, of.String()+"."+field.Name)
			}
			f.rows = append(f.rows, [3]string{prefix + name, typeName(kind), text})
			continue
		}
		_, typeComment := findDeclaration(inner)
		if typeComment = strings.TrimPrefix(adaptComment(typeComment, "", nil), inner.Name()+" "); typeComment != "" {
			text = strings.TrimSpace(text + " " + capitalize(strings.TrimPrefix(typeComment, "is ")))
		}
		f.rows = append(f.rows, [3]string{prefix + name, typeName(kind), text})
		f.addFields(prefix+name+within+".", inner)
	}
}

func capitalize(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// fileFields iterates over the fields of a struct that can be set in a configuration file.
func fileFields(of reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range of.NumField() {
			if field := of.Field(i); field.IsExported() && field.Tag.Get("json") != "-" && !yield(field) {
				return
			}
		}
	}
}

// fileKey returns the key of a field in the configuration file. For an embedded struct without a key it returns "",
// because the keys of the struct's fields are used instead.
func fileKey(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "" && !f.Anonymous {
		return f.Name
	}
	return name
}

// describedElsewhere returns text that refers to another field, if the comment of that field also describes this
// one. Otherwise it returns "".
func describedElsewhere(name string, of reflect.Type, docs, keys map[string]string) string {
	for field := range fileFields(of) {
		if slices.Contains(words.FindAllString(docs[field.Name], -1), name) {
			return "See `" + keys[field.Name] + "`."
		}
	}
	return ""
}

// findStruct returns the struct of this module that a type contains, through pointers, slices and maps. It also
// returns the text that the path of the struct's keys has after the field's key. If the type has no such struct, it
// returns nil.
func findStruct(of reflect.Type) (structType reflect.Type, keySuffix string) {
	within := ""
	for {
		switch {
		case isSingleValue(of):
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

// isSingleValue reports whether a type is written as one value in a configuration file, because it has its own
// unmarshal method.
func isSingleValue(of reflect.Type) bool {
	for _, way := range []reflect.Type{reflect.TypeFor[encoding.TextUnmarshaler](), reflect.TypeFor[json.Unmarshaler]()} {
		if reflect.PointerTo(of).Implements(way) {
			return true
		}
	}
	return false
}

// typeName returns the name that the documentation uses for a type.
func typeName(of reflect.Type) string {
	if of.Kind() == reflect.Pointer {
		return typeName(of.Elem())
	}
	if w, ok := reflect.Zero(of).Interface().(interface{ WantedFormat() string }); ok {
		return w.WantedFormat()
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

// newFieldTable returns a Markdown table of the configuration keys of a struct. Each key begins with prefix.
func newFieldTable(prefix string, of reflect.Type) string {
	var f fieldTable
	f.addFields(prefix, of)
	if len(f.undocumented) > 0 {
		failf("these fields of configuration files have no comment, and no other field's comment mentions them: %s", strings.Join(f.undocumented, ", "))
	}
	var b strings.Builder
	b.WriteString("| key | type | |\n|---|---|---|\n")
	for _, row := range f.rows {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", row[0], row[1], cellEscaper.Replace(row[2]))
	}
	return b.String()
}

// newAgentTable returns a Markdown table of the keys in an agent's configuration file that are also flags.
func newAgentTable() string {
	var a config.Agent
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	a.RegisterFlags(flags)
	var b strings.Builder
	b.WriteString("| key | type | default | |\n|---|---|---|---|\n")
	flags.SortFlags = false
	flags.VisitAll(func(f *pflag.Flag) {
		name := config.ToFileKey(f.Name)
		if _, err := config.DecodeAgentFile([]byte(name + ":\n")); strings.Contains(err.Error(), "unknown key") {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		switch kind {
		case "":
			kind = "true or false"
		case "stringToString":
			kind = "keys with values"
		}
		value := ""
		if f.DefValue != "" && f.DefValue != "[]" {
			value = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, kind, value, cellEscaper.Replace(usage))
	})
	return b.String()
}

// variableDocs maps the environment variables that Slipway's programs read to their descriptions.
var variableDocs = map[string]string{
	"LANG":                               "`slipway top` and `slipway drain` draw in plain ASCII unless this selects UTF-8. `LC_ALL` and `LC_CTYPE` take precedence.",
	"OS_*":                               "OpenStack: credentials as in an openrc file. Used if the file of `--cloud-config` has neither `cloud`, `cloudsFile` nor `auth`, and `OS_CLOUD` is not set: ",
	"NO_COLOR":                           "If it is not empty, `slipway top` and `slipway drain` use no colours.",
	"LC_ALL":                             "See `LANG`.",
	"LC_CTYPE":                           "See `LANG`.",
	"GOGC":                               "Garbage collection target of Go, in percent of the live heap. If it is not set, each process sets a suitable value.",
	"GOMEMLIMIT":                         "Set for a plugin with a memory limit to four fifths of the limit, unless its `environment` sets it.",
	"KUBERNETES_SERVICE_HOST":            "Address of the API server, in a pod without `--kubeconfig`; the kubelet sets it.",
	"KUBERNETES_SERVICE_PORT":            "Port of the API server, in a pod without `--kubeconfig`; the kubelet sets it.",
	"NODE_NAME":                          "The node that an agent guards, unless `--node-name` is set. A DaemonSet sets it from `spec.nodeName`.",
	"OS_CLOUD":                           "OpenStack: entry of `clouds.yaml`. Used if the file of `--cloud-config` has neither `cloud` nor `auth`.",
	"OTEL_EXPORTER_OTLP_ENDPOINT":        "Receiver of an agent's traces, unless `--trace-endpoint` is set. OpenTelemetry's other variables apply too.",
	"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "Like `OTEL_EXPORTER_OTLP_ENDPOINT`, and takes precedence.",
	"POD_NAME":                           "Name of the process's own pod. In the AWS queue mode, the pod gets an Event for each unreadable message.",
	"POD_UID":                            "UID of that pod, so that `kubectl describe pod` shows the Event.",
	"POD_NAMESPACE":                      "Namespace of a process's own Leases, unless a flag is set. The pod sets it from `metadata.namespace`.",
	"TERM":                               "If it is `dumb` or empty, `slipway top` and `slipway drain` draw no screen.",
}

// cloudDocs maps the fields of the --cloud-config file to the descriptions of their clouds.
var cloudDocs = map[string]string{
	"Azure":        "Scale sets and agent pools of AKS ([nodegroups.md](../nodegroups.md)).",
	"OpenStack":    "Servers of Nova ([openstack.md](../openstack.md)).",
	"Cloudpool":    "Servers of the cloudpool REST API, also the ones behind `slipway cloudpool` ([cloudpool.md](../cloudpool.md)).",
	"Plugins":      "Plugins: programs that implement a cloud ([plugins.md](../plugins.md)).",
	"ExternalGRPC": "A list of providers with the cluster autoscaler's external gRPC protocol ([plugins.md](../plugins.md)).",
}

func configurationPage() string {
	for _, own := range []string{"NODE_NAME", "POD_NAMESPACE"} { // they are defaults of flags
		must(os.Unsetenv(own))
	}
	var b strings.Builder
	b.WriteString("# Configuration\n\nThe keys of each configuration file, and the environment variables, generated from the code. Durations are written " +
		"as in Go,\nsuch as `90s` or `1h30m`; quantities as in Kubernetes, such as `500m` or `16Gi`. An unknown key is an error " +
		"that suggests a similar key.\nFlags are in [commands.md](commands.md), NodeGroups in [crds.md](crds.md). `slipway cloudpool` and `slipway manager` have only flags and the file of their clouds.\n")
	b.WriteString("\n## Agent\n\nThe file of `slipway agent --config`, in YAML. A flag on the command line overrides it. See [agent.md](../agent.md).\n\n" + newAgentTable())
	b.WriteString("\n### conditions\n\nA list of actions for conditions of the node.\n\n" + newFieldTable("conditions[].", reflect.TypeFor[condition.Rule]()))
	b.WriteString("\n### notifications\n\nA list of receivers of notifications about the node ([notifications.md](../notifications.md)).\n\n" +
		newFieldTable("notifications[].", reflect.TypeFor[notify.Receiver]()))
	b.WriteString("\n## Clouds\n\nThe file of `--cloud-config`, in YAML, of `slipway manager`, `slipway cloudpool` and `slipway doctor`. It configures one or more clouds.\n")
	for _, field := range reflect.VisibleFields(reflect.TypeFor[manager.Clouds]()) {
		if field.Anonymous {
			continue // the fields of an embedded struct follow
		}
		if cloudDocs[field.Name] == "" {
			failf("the reference has no section for the cloud %s: add one in tools/docgen", field.Name)
		}
		inner, within := findStruct(field.Type)
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n%s", fileKey(field), cloudDocs[field.Name], newFieldTable(fileKey(field)+within+".", inner))
	}
	b.WriteString("\n## Environment variables\n\nIn addition, the libraries of the clouds read variables: the Azure SDK `AZURE_*` ([nodegroups.md](../nodegroups.md)) and OpenStack the `OS_*` of " +
		"an openrc file ([openstack.md](../openstack.md)),\nand `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` apply. The drop-in commands read the variables of the tools that they replace.\n\n| variable | |\n|---|---|\n")
	unused := maps.Clone(variableDocs)
	var openrc []string
	for _, name := range findReadVariables() {
		if strings.HasPrefix(name, "OS_") && name != "OS_CLOUD" {
			openrc = append(openrc, name)
			continue
		}
		if unused[name] == "" {
			failf("the code reads $%s, and the reference does not describe it: add it in tools/docgen", name)
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, unused[name])
		delete(unused, name)
	}
	fmt.Fprintf(&b, "| `OS_*` | %s%s. |\n", unused["OS_*"], formatList(openrc))
	delete(unused, "OS_*")
	for name := range unused {
		failf("the reference describes $%s, which the code does not read", name)
	}
	return b.String()
}

// variableName matches a text that has the form of an environment variable's name.
var variableName = regexp.MustCompile(`^[A-Z][A-Z0-9_]{2,}$`)

// findReadVariables returns the names of the environment variables that the code reads. It finds the names in
// functions that read variables, and the names in Go variables called "variables". It leaves out the variables of
// the drop-in commands, because the migration pages describe them.
func findReadVariables() []string {
	var all []string
	in := func(n ast.Node) (names []string, reads bool) {
		ast.Inspect(n, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				reads = reads || slices.Contains([]string{"Getenv", "getenv", "LookupEnv", "env"}, calledName(n))
			case *ast.BasicLit:
				if name, ok := stringValue(n); ok && variableName.MatchString(name) {
					names = append(names, name)
				}
			}
			return true
		})
		return names, reads
	}
	for path, s := range allSources() {
		if strings.HasPrefix(path, "internal/compat/") {
			continue
		}
		s.visitNodes(func(n ast.Node) {
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
	return sortUnique(all)
}

// calledName returns the name of the function that an expression calls, without the package or the receiver.
func calledName(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}
