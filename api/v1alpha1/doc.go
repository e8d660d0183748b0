// Package v1alpha1 holds the types of the API group slipway.dev: a NodeGroup says which nodes there are to be and how
// they may come and go, a NodeRetirement records one node's way out, a PoolUpdate one change of a cloudpool.
//
// The API server checks what can be told from one object alone (the markers and CEL rules here); what takes a look at
// the cluster or the cloud is checked by the manager and said in the status.
//
// Each type has a marker with a number, slipway.dev/schema-generation, which orders its CustomResourceDefinitions whatever
// version a program is of. Whoever changes anything of a type raises it, descriptions included, so that no older program
// puts its own definition back and has the API server drop the new fields; a test of package crds asks for it.
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
//go:generate sh -c "cp ../crds/*.yaml ../../charts/slipway/files/crds"

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
