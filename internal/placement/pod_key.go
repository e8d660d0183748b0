package placement

import (
	"cmp"
	"fmt"
	"strings"
)

// PodKey identifies a pod or another namespaced object. Its form in JSON and YAML is "namespace/name".
type PodKey struct{ Namespace, Name string }

func (k PodKey) String() string { return k.Namespace + "/" + k.Name }

// MarshalText writes "namespace/name".
func (k PodKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText parses "namespace/name". It returns an error for any other form.
func (k *PodKey) UnmarshalText(text []byte) error {
	namespace, name, ok := strings.Cut(string(text), "/")
	if !ok || strings.Contains(name, "/") {
		return fmt.Errorf("pod %q: want namespace/name", text)
	}
	k.Namespace, k.Name = namespace, name
	return nil
}

// Compare orders keys by namespace, then by name.
func (k PodKey) Compare(other PodKey) int {
	return cmp.Or(cmp.Compare(k.Namespace, other.Namespace), cmp.Compare(k.Name, other.Name))
}
