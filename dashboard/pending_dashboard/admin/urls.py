# SPDX-License-Identifier: Apache-2.0

from django.urls import re_path

from pending_dashboard.admin import views

urlpatterns = [
    re_path(r'^$', views.IndexView.as_view(), name='index'),
]
