// Package v1alpha1 defines the API group slipway.dev. A NodeGroup defines a set of nodes and when nodes are added and
// retired. A NodeRetirement takes one node out of service. A PoolUpdate is one update of a cloudpool.
//
// The markers and CEL rules here let the API server check each object. The manager checks what depends on the
// cluster or the cloud, and reports it in the status.
//
// The marker slipway.dev/schema-generation numbers the versions of each CustomResourceDefinition. Raise it with every change
// of a type, also of a description. Otherwise an older program could install its own definition again, and the API server
// would drop the new fields. A test in package crds checks this.
//
// Old names of fields, reasons and states are read for one release: see old_names.go.
//
// +kubebuilder:object:generate=true
// +groupName=slipway.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

//go:generate go tool -modfile=../../tools/gotools/go.mod controller-gen object crd:generateEmbeddedObjectMeta=false paths=. output:crd:dir=../crds
//go:generate sh -c "cp ../crds/*.yaml ../../charts/slipway/files/crds && cp ../crds/*.yaml ../../charts/slipway-crds/files/crds"

// GroupVersion is the API group and version of all types here.
var GroupVersion = schema.GroupVersion{Group: "slipway.dev", Version: "v1alpha1"}

var builder = runtime.NewSchemeBuilder(func(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &NodeGroup{}, &NodeGroupList{}, &NodeRetirement{}, &NodeRetirementList{},
		&PoolUpdate{}, &PoolUpdateList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
})

// AddToScheme makes the types known to a scheme.
var AddToScheme = builder.AddToScheme
