# SPDX-License-Identifier: Apache-2.0

"""A whole OpenStack control plane on one machine.

``python -m tools.cloud demo`` brings it up and shows on it what nova-pending
does; ``up``, ``status``, ``exec``, ``kill``, ``restart`` and ``down`` are for
all else. Everything lies below one state directory, and in databases and
virtual hosts that bear the name of the cloud.

main            command line, exit codes
signals         what asks the tool to end
settings        what one cloud is made of: names, addresses, secrets
databases, bus  the servers that are used, and what is made and removed there
private_servers servers of the cloud's own, where no others are given
configuration   the services' configuration files
services        the services: how each is started and when it is ready
identity        users, roles and the catalogue in Keystone
hypervisor      a libvirtd of the cloud's own, and QEMU under it
guest           what boots there
libvirt_compute nova-compute above it, without another user's rights
device_compute  nova-compute with a fake driver that has PCI devices
l2agent         stand-in for the L2 agents of the compute hosts
stand_ins       what the released services load: a stand-in for storage
processes       starts, watches and stops processes
plan            runs steps as soon as what they need is done
stack_plan      the order in which all this comes up
stack           one cloud, from the check of its servers to its last trace
record          what one process of the tool leaves for the next one
profiles        what a cloud can be made of
screen          progress, tables and the next line to type
client          runs the openstack client and shows what it answers
demo            the demonstration
demo_libvirt    the same, and what real guests say of themselves
"""
