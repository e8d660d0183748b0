package controller

import (
	"github.com/slipway-dev/slipway/internal/cloudpool/pooltest"
)

var uuid, machine, node = pooltest.UUID, pooltest.Machine, pooltest.Node
