package placement

import (
	"cmp"
	"fmt"
	"strings"
)

// PodKey names a pod, or another object of a namespace. In JSON and YAML it is "namespace/name".
type PodKey struct{ Namespace, Name string }

// String returns "namespace/name".
func (k PodKey) String() string { return k.Namespace + "/" + k.Name }

// MarshalText returns what String does.
func (k PodKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads "namespace/name".
func (k *PodKey) UnmarshalText(text []byte) error {
	namespace, name, ok := strings.Cut(string(text), "/")
	if !ok || strings.Contains(name, "/") {
		return fmt.Errorf("pod %q is not namespace/name", text)
	}
	k.Namespace, k.Name = namespace, name
	return nil
}

// Compare orders keys by namespace, then by name.
func (k PodKey) Compare(other PodKey) int {
	return cmp.Or(cmp.Compare(k.Namespace, other.Namespace), cmp.Compare(k.Name, other.Name))
}
